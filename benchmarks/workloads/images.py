"""``headrace run --format files`` over small JPEGs and a small network, and a loop by hand with threads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import turns
from goals import INTERVALS, Goal, ratio
from peers import python_of
from PIL import Image

TITLE = "Small JPEGs through a small network: headrace run, a loop by hand with threads, Daft"

ABOUT = f"""\
Images of 160 by 160 pixels, 5 KB each, are decoded, made smaller, and classified by a network of two convolutions; the
output is JSON lines of paths and scores. Each run is a process of its own, counted from its start to its end, imports
included. The loop by hand reads and decodes two batches ahead, of 256, which is its best size, on as many threads as
there are cores. Daft downloads, decodes row by row and gives the network batches of 256, by Python functions, on its
native runner; it has an environment of its own (`make daft`), and takes part in the first three rounds. The ways take
turns, forwards and backwards; their outputs are equal.

{INTERVALS}"""

HEADRACE, HAND, DAFT = "headrace run", "by hand", "Daft"

GOALS = (
    Goal("Images: seconds of headrace run / of the loop by hand", ratio(HEADRACE, HAND, "seconds"), at_most=1.05),
    Goal("the same of CPU seconds", ratio(HEADRACE, HAND, "cpu")),
    Goal("Images: seconds of headrace run / of Daft", ratio(HEADRACE, DAFT, "seconds"), at_most=1.0),
)


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    count = 300 if quick else 5000
    images, model = folder / "images", folder / "net.pt"
    _write(images, count)
    _save(model)
    ways = {
        HAND: turns.program("images_by_hand", images, model, folder / "hand.jsonl"),
        HEADRACE: _headrace(images, model, folder / "headrace.jsonl"),
    }
    if python := python_of("daft"):
        ways[DAFT] = [python, "images_with_daft.py", images, model, folder / "daft.jsonl"]
    runs = turns.take_turns(ways, repeats, peers=[DAFT])
    _compare([folder / f"{name}.jsonl" for name in ("hand", "headrace", "daft")[: len(ways)]])
    yield from turns.facts(runs, count)


def _write(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12, 3), dtype="uint8")
        Image.fromarray(pixels).resize((160, 160), Image.Resampling.BICUBIC).save(path, quality=85)


def _save(path: Path) -> None:
    sys.path.insert(0, str(turns.ELSEWHERE))
    from image_net import Network  # noqa: PLC0415 - as the processes import it

    torch.manual_seed(0)
    torch.save(Network().state_dict(), path)


def _headrace(images: Path, model: Path, output: Path) -> turns.Command:
    words = ["run", f"{images}/**/*.jpg", "--format", "files", "--decode", "image_net:decode"]
    words += ["--handler", "pytorch-tensor", "--model", str(model), "--handler-arg", "model_class=image_net:Network"]
    return turns.headrace(*words, "--output", output, "--no-progress")


def _compare(outputs: Sequence[Path]) -> None:
    expected, *others = map(_scores, outputs)
    for found in others:
        assert sorted(expected) == sorted(found), "the files differ"
        assert np.allclose([expected[path] for path in found], list(found.values()), atol=1e-4), "the scores differ"


def _scores(output: Path) -> dict[str, list[float]]:
    """By path; Daft writes a folder of files."""
    files = output.iterdir() if output.is_dir() else [output]
    rows = (json.loads(line) for file in files for line in file.read_text().splitlines())
    return {row["path"].removeprefix("file://"): row["prediction"] for row in rows}
