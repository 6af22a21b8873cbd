"""``headrace run`` over tables of numbers and text, through a scikit-learn pipeline, beside a loop by hand."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas
import turns
from goals import INTERVALS, Goal, difference
from peers import python_of
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

TITLE = "Tables of numbers and text through a scikit-learn pipeline: headrace run, a loop by hand, Daft, Ray Data"

_TIMEOUT = "20"

ABOUT = f"""\
A table of six columns (an id, two columns of text, an integer, two floats) becomes a file of the same format with the
predictions of a pipeline of a `ColumnTransformer` and logistic regression. Every run is a process of its own, and its
whole wall time counts, start and imports included. The loop by hand reads 20,000 rows at a time with pyarrow (JSON
lines and CSV: pandas), calls `predict`, and writes. Daft (its native runner; a class with a batch method) and Ray Data
(`map_batches` with pandas, an actor) get batches of 20,000 rows, too, write as many files as they like, and have
environments of their own (`make daft`, `make ray`); they take part in the first three rounds. In memory,
`predict_table` stands beside the model's own call, in a process with OPENBLAS_THREAD_TIMEOUT={_TIMEOUT}: by default an
idle thread of OpenBLAS keeps a core busy for 30 ms behind each call of the model, and `headrace run` sets the same. All
outputs of one table are equal. The ways take turns, forwards and backwards.

{INTERVALS}"""

_FORMATS = ("parquet", "csv", "jsonl")
_SEEN = ("age", "income", "city", "zip", "score")
_TURNS_IN_MEMORY = 5
"""At least: the first call of each way is slower, and all take a second."""
_FEW, _MANY = 300_000, 2_000_000
_OURS, _BY_HAND, _PEERS = "headrace", "by hand", {"Daft": "daft", "Ray Data": "ray"}


_seconds = partial(turns.seconds_beside, "Mixed table")


def _named(kind: str, count: int) -> str:
    return f"{kind}, {count:,} rows"


GOALS = [
    *(
        _seconds(_named(kind, _MANY), _OURS, other, most)
        for kind in _FORMATS
        for other, most in ((_BY_HAND, 1.1), *((peer, 1.0) for peer in _PEERS))
    ),
    *(
        Goal(
            f"Mixed table, {_named(kind, _FEW)}: headrace - by hand",
            difference(*(turns.way(_named(kind, _FEW), who) for who in (_OURS, _BY_HAND)), "seconds"),
            at_most=0.5,
            unit=" s",
        )
        for kind in _FORMATS
    ),
    _seconds("in memory", _OURS, _BY_HAND, 1.2),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each format, number of rows and way, then those in memory."""
    model = fitted(folder / "model.pkl")
    for count in (20_000,) if quick else (_FEW, _MANY):
        _write(table(count), folder / "table")
        for kind in _FORMATS:
            runs = _of_files(folder, kind, model, _named(kind, count), repeats)
            yield from turns.facts(runs, count)
    yield from _in_memory(model, 20_000 if quick else 1_000_000, repeats if quick else max(repeats, _TURNS_IN_MEMORY))


def table(count: int, seed: int = 3) -> pandas.DataFrame:
    """Its rows are the same in every run."""
    rng = np.random.default_rng(seed)
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


def fitted(path: Path) -> Path:
    """The path of a model of such rows."""
    rows = table(20_000)
    columns = make_column_transformer(
        (StandardScaler(), ["age", "income", "score"]), (OneHotEncoder(handle_unknown="ignore"), ["city", "zip"])
    )
    labels = (rows["income"] + 10 * rows["score"] + 5 * (rows["city"] == "Bern") > 50).astype(int)
    path.write_bytes(pickle.dumps(make_pipeline(columns, LogisticRegression()).fit(rows[list(_SEEN)], labels)))
    return path


def _write(table: pandas.DataFrame, path: Path) -> None:
    table.to_parquet(path.with_suffix(".parquet"), index=False)
    table.to_csv(path.with_suffix(".csv"), index=False)
    table.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)


def _of_files(folder: Path, kind: str, model: Path, table: str, repeats: int) -> dict[str, list[dict[str, float]]]:
    source = folder / f"table.{kind}"
    outputs = {way: folder / f"{way}.{kind}" for way in (_OURS, _BY_HAND, *_PEERS)}
    types = ["--types", "zip=str"] if kind == "csv" else []
    words = ["run", source, "--model", model, "--handler", "sklearn-pandas", "--columns", ",".join(_SEEN), *types]
    ways = {
        _BY_HAND: turns.program("table_by_hand", source, model, outputs[_BY_HAND]),
        _OURS: turns.headrace(*words, "--output", outputs[_OURS]),
    }
    for peer, name in _PEERS.items():
        if python := python_of(name):
            ways[peer] = [python, f"table_with_{name}.py", source, model, outputs[peer]]
    named = {turns.way(table, who): command for who, command in ways.items()}
    runs = turns.take_turns(named, repeats, peers=[turns.way(table, peer) for peer in _PEERS])
    expected = _predictions(outputs[_BY_HAND], kind)
    for way in ways:
        assert _predictions(outputs[way], kind) == expected, f"{kind}, {way}: predictions differ"
    return runs


def _predictions(output: Path, kind: str) -> list[int]:
    """In the order of the input, whatever that of the output; peers write folders of files."""
    files = sorted(path for path in output.iterdir() if path.is_file()) if output.is_dir() else [output]
    read = {"parquet": pandas.read_parquet, "csv": pandas.read_csv, "jsonl": partial(pandas.read_json, lines=True)}
    rows = pandas.concat([read[kind](path) for path in files]).sort_values("id")
    assert rows["id"].is_unique
    return rows["prediction"].astype(int).tolist()


def _in_memory(path: Path, count: int, repeats: int) -> Iterator[dict[str, Any]]:
    set_before_import = mock.patch.dict(os.environ, OPENBLAS_THREAD_TIMEOUT=_TIMEOUT)
    with set_before_import, ProcessPoolExecutor(1, get_context("spawn")) as process:
        runs = process.submit(_turns_in_memory, path, count, repeats).result()
    yield from turns.facts(runs, count)


def _turns_in_memory(path: Path, count: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    from headrace import predict_table  # noqa: PLC0415 - only here is it in this process
    from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas  # noqa: PLC0415 - as above

    model, rows, handler = pickle.loads(path.read_bytes()), table(count), SklearnModelHandlerPandas(str(path))
    calls = {_BY_HAND: lambda: model.predict(rows), _OURS: lambda: predict_table(handler, rows)["prediction"]}
    runs: dict[str, list[dict[str, float]]] = {turns.way("in memory", who): [] for who in calls}
    for turn in range(repeats):
        answers = []
        for who in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            started, cpu = time.perf_counter(), time.process_time()
            answers.append(calls[who]())
            figures = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
            runs[turns.way("in memory", who)].append(figures)
        assert (answers[0] == answers[1]).all()
    return runs
