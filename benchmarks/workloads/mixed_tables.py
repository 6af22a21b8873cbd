"""``headrace run`` over tables of numbers and text, through a scikit-learn pipeline, beside a loop by hand."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from goals import INTERVALS, Figures, Goal, Results, find, interval
from peers import python_of
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

TITLE = "Tables of numbers and text through a scikit-learn pipeline: headrace run, a loop by hand, Daft, Ray Data"

ABOUT = f"""\
A table of six columns (an id, two columns of text, an integer, two floats) becomes a file of the same format with the
predictions of a pipeline of a `ColumnTransformer` and logistic regression. Every run is a process of its own, and its
whole wall time counts, start and imports included. The loop by hand reads 20,000 rows at a time with pyarrow (JSON
lines and CSV: pandas), calls `predict`, and writes. Daft (its native runner; a class with a batch method) and Ray Data
(`map_batches` with pandas, an actor) get batches of 20,000 rows, too, write as many files as they like, and have
environments of their own (`make daft`, `make ray`); they take part in the first three rounds. In memory,
`predict_table` stands beside the model's own call. All outputs of one table are equal. The ways take turns, forwards
and backwards.

{INTERVALS}"""

_FORMATS = ("parquet", "csv", "jsonl")
_SEEN = ("age", "income", "city", "zip", "score")
_HERE = Path(__file__).parent.parent
_FEW, _MANY = 300_000, 2_000_000
_OURS, _BY_HAND = "headrace", "by hand"
_PEERS = {"Daft": "daft", "Ray Data": "ray"}
_ROUNDS_OF_PEERS = 3


def _compared(label: str, other: str, how: Callable[[float, float], float]) -> Figures:
    """Headrace's seconds and another one's, of each round in which both took part."""

    def figures(results: Results) -> list[float]:
        runs = find(results, label)
        return [how(ours, others) for ours, others in zip(runs[_OURS], runs[other], strict=False)]

    return figures


def _label(kind: str, count: int) -> str:
    return f"{kind}, {count:,} rows"


GOALS = [
    *(
        Goal(f"Mixed table, {label}: headrace / {other}", _compared(label, other, operator.truediv), at_most=most)
        for label in (_label(kind, _MANY) for kind in _FORMATS)
        for other, most in ((_BY_HAND, 1.1), *((peer, 1.0) for peer in _PEERS))
    ),
    *(
        Goal(f"Mixed table, {label}: headrace - by hand", _compared(label, _BY_HAND, operator.sub), 0.5, unit=" s")
        for label in (_label(kind, _FEW) for kind in _FORMATS)
    ),
    Goal("Mixed table in memory: predict_table / the model", _compared("in memory", _BY_HAND, operator.truediv), 1.2),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each format and number of rows, then those in memory."""
    model = _fitted(folder / "model.pkl")
    for count in (20_000,) if quick else (_FEW, _MANY):
        _write(_table(count), folder / "table")
        for kind in _FORMATS:
            yield _of_files(folder, kind, model, count, repeats)
    yield from _in_memory(model, 20_000 if quick else 1_000_000, repeats)


def _table(count: int) -> pandas.DataFrame:
    rng = np.random.default_rng(3)
    return pandas.DataFrame(
        {
            "id": np.arange(count),
            "age": rng.integers(18, 90, count),
            "income": rng.normal(50, 20, count).round(3),
            "city": rng.choice(["Bern", "Basel", "Zug", "Chur", "Genf"], count),
            "zip": rng.choice(["00501", "8001", "4051", "3000"], count),
            "score": rng.normal(size=count),
        }
    )


def _fitted(path: Path) -> Path:
    table = _table(20_000)
    columns = make_column_transformer(
        (StandardScaler(), ["age", "income", "score"]), (OneHotEncoder(handle_unknown="ignore"), ["city", "zip"])
    )
    labels = (table["income"] + 10 * table["score"] + 5 * (table["city"] == "Bern") > 50).astype(int)
    path.write_bytes(pickle.dumps(make_pipeline(columns, LogisticRegression()).fit(table[list(_SEEN)], labels)))
    return path


def _write(table: pandas.DataFrame, path: Path) -> None:
    table.to_parquet(path.with_suffix(".parquet"), index=False)
    table.to_csv(path.with_suffix(".csv"), index=False)
    table.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)


def _of_files(folder: Path, kind: str, model: Path, count: int, repeats: int) -> dict[str, Any]:
    source = folder / f"table.{kind}"
    outputs = {way: folder / f"{way}.{kind}" for way in (_OURS, _BY_HAND, *_PEERS)}
    main = "import sys; from headrace.cli.main import main; sys.exit(main())"
    types = ["--types", "zip=str"] if kind == "csv" else []
    options = ["--handler", "sklearn-pandas", "--columns", ",".join(_SEEN), *types, "--output"]
    commands = {
        _OURS: [sys.executable, "-c", main, "run", source, "--model", model, *options, outputs[_OURS]],
        _BY_HAND: [sys.executable, _HERE / "elsewhere/table_by_hand.py", source, model, outputs[_BY_HAND]],
    }
    for peer, name in _PEERS.items():
        if python := python_of(name):
            commands[peer] = [python, _HERE / f"elsewhere/table_with_{name}.py", source, model, outputs[peer]]
    seconds: dict[str, list[float]] = {way: [] for way in commands}
    for turn in range(repeats):
        for way in list(commands)[:: 1 if turn % 2 == 0 else -1]:
            if way not in _PEERS or turn < _ROUNDS_OF_PEERS:
                seconds[way].append(_seconds_of(commands[way]))
    expected = _predictions(outputs[_BY_HAND], kind)
    for way in seconds:
        assert _predictions(outputs[way], kind) == expected, f"{kind}, {way}: predictions differ"
    return _facts(_label(kind, count), seconds)


def _facts(table: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    pairs = list(zip(seconds[_OURS], seconds[_BY_HAND], strict=True))
    return {
        "table": table,
        **{f"{way}, s": str(interval(seconds[way])) if way in seconds else "" for way in (_OURS, _BY_HAND, *_PEERS)},
        "headrace / by hand": str(interval([mine / hand for mine, hand in pairs])),
        "more, s": str(interval([mine - hand for mine, hand in pairs])),
        "runs": seconds,
    }


def _seconds_of(command: Sequence[str | Path]) -> float:
    started = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    return seconds


def _predictions(output: Path, kind: str) -> list[int]:
    """In the order of the input, whatever that of the output; peers write folders of files."""
    files = sorted(path for path in output.iterdir() if path.is_file()) if output.is_dir() else [output]
    read = {"parquet": pandas.read_parquet, "csv": pandas.read_csv, "jsonl": partial(pandas.read_json, lines=True)}
    rows = pandas.concat([read[kind](path) for path in files]).sort_values("id")
    assert rows["id"].is_unique
    return rows["prediction"].astype(int).tolist()


def _in_memory(path: Path, count: int, repeats: int) -> Iterator[dict[str, Any]]:
    from headrace import predict_table  # noqa: PLC0415 - only here is it in this process
    from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas  # noqa: PLC0415 - as above

    model, table, handler = pickle.loads(path.read_bytes()), _table(count), SklearnModelHandlerPandas(str(path))
    seconds: dict[str, list[float]] = {_OURS: [], _BY_HAND: []}
    for turn in range(repeats):
        for way in (_OURS, _BY_HAND)[:: 1 if turn % 2 == 0 else -1]:
            started = time.perf_counter()
            if way == _BY_HAND:
                known = model.predict(table)
            else:
                found = predict_table(handler, table)["prediction"]
            seconds[way].append(time.perf_counter() - started)
    assert (found == known).all()
    yield _facts("in memory", seconds)
