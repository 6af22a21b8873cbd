"""``headrace run --format files`` over small JPEGs and a small network, and a loop by hand with threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from goals import INTERVALS, Goal, interval, ratio
from PIL import Image

TITLE = "Small JPEGs through a small network: headrace run, a loop by hand with threads"

ABOUT = f"""\
Images of 160 by 160 pixels, 5 KB each, are decoded, made smaller, and classified by a network of two convolutions; the
output is JSON lines of paths and scores. Each run is a process of its own, counted from its start to its end, imports
included. The loop by hand reads and decodes two batches ahead, of 256, which is its best size, on as many threads as
there are cores. The ways take turns, forwards and backwards; their outputs are equal.

{INTERVALS}"""

HEADRACE, HAND = "headrace run", "by hand"

GOALS = (
    Goal("Images: seconds of headrace run / of the loop by hand", ratio(HEADRACE, HAND, "seconds"), at_most=1.05),
    Goal("the same of CPU seconds", ratio(HEADRACE, HAND, "cpu")),
)

_ELSEWHERE = Path(__file__).parents[1] / "elsewhere"


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    count = 300 if quick else 5000
    images, model = folder / "images", folder / "net.pt"
    _write(images, count)
    _save(model)
    ways = {HAND: _by_hand(images, model, folder), HEADRACE: _headrace(images, model, folder)}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
            runs[name].append(_run(ways[name]))
        _compare(folder)
    for name, some in runs.items():
        yield {
            "way": name,
            "images": f"{count:,}",
            "seconds": str(interval([run["seconds"] for run in some])),
            "CPU seconds": str(interval([run["cpu"] for run in some])),
            "runs": some,
        }


def _write(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12, 3), dtype="uint8")
        Image.fromarray(pixels).resize((160, 160), Image.Resampling.BICUBIC).save(path, quality=85)


def _save(path: Path) -> None:
    sys.path.insert(0, str(_ELSEWHERE))
    from image_net import Network  # noqa: PLC0415 - as the processes import it

    torch.manual_seed(0)
    torch.save(Network().state_dict(), path)


def _by_hand(images: Path, model: Path, folder: Path) -> Sequence[str]:
    return ["images_by_hand.py", str(images), str(model), str(folder / "hand.jsonl")]


def _headrace(images: Path, model: Path, folder: Path) -> Sequence[str]:
    words = ["run", f"{images}/**/*.jpg", "--format", "files", "--decode", "image_net:decode"]
    words += ["--handler", "pytorch-tensor", "--model", str(model), "--handler-arg", "model_class=image_net:Network"]
    words += ["--output", str(folder / "headrace.jsonl"), "--no-progress"]
    return ["-c", "import sys; from headrace.cli.main import main; sys.exit(main())", *words]


def _run(command: Sequence[str]) -> dict[str, float]:
    before, started = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *command], cwd=_ELSEWHERE, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu": cpu}


def _compare(folder: Path) -> None:
    hand, ours = (_scores(folder / f"{name}.jsonl") for name in ("hand", "headrace"))
    assert list(hand) == list(ours), "the files differ"
    assert np.allclose(list(hand.values()), list(ours.values()), atol=1e-4), "the scores differ"


def _scores(path: Path) -> dict[str, list[float]]:
    rows = map(json.loads, path.read_text().splitlines())
    return {row["path"]: row["prediction"] for row in rows}
