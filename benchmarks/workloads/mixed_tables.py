"""``headrace run`` over tables of numbers and text, through a scikit-learn pipeline, beside a loop by hand."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from goals import INTERVALS, interval
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

TITLE = "Tables of numbers and text through a scikit-learn pipeline: headrace run, a loop by hand"

ABOUT = f"""\
A table of six columns (an id, two columns of text, an integer, two floats) becomes a file of the same format with the
predictions of a pipeline of a `ColumnTransformer` and logistic regression. Every run is a process of its own, and its
whole wall time counts, start and imports included. The loop by hand reads 20,000 rows at a time with pyarrow (JSON
lines and CSV: pandas), calls `predict`, and writes. In memory, `predict_table` stands beside the model's own call. All
outputs of one table are equal. The ways take turns, forwards and backwards.

{INTERVALS}"""

_FORMATS = ("parquet", "csv", "jsonl")
_SEEN = ("age", "income", "city", "zip", "score")
_HERE = Path(__file__).parent.parent


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each format and number of rows, then those in memory."""
    model = _fitted(folder / "model.pkl")
    for count in (20_000,) if quick else (300_000, 2_000_000):
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
    source, ours, theirs = folder / f"table.{kind}", folder / f"headrace.{kind}", folder / f"hand.{kind}"
    main = "from headrace.cli.main import main; main()"
    options = ["--handler", "sklearn-pandas", "--columns", ",".join(_SEEN), "--types", "zip=str"]
    commands = {
        "headrace": ["-c", main, "run", str(source), "--model", str(model), "--output", str(ours), *options],
        "hand": [str(_HERE / "elsewhere" / "table_by_hand.py"), str(source), str(model), str(theirs)],
    }
    seconds: dict[str, list[float]] = {way: [] for way in commands}
    for turn in range(repeats):
        for way in list(commands)[:: 1 if turn % 2 == 0 else -1]:
            seconds[way].append(_seconds_of(commands[way]))
    one, other = (_read(path)["prediction"].astype(int).tolist() for path in (ours, theirs))
    assert one == other, f"{kind}: predictions differ"
    return _facts(kind, count, seconds)


def _facts(table: str, count: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    pairs = list(zip(seconds["headrace"], seconds["hand"], strict=True))
    return {
        "table": table,
        "rows": f"{count:,}",
        "headrace, s": str(interval(seconds["headrace"])),
        "by hand, s": str(interval(seconds["hand"])),
        "headrace / by hand": str(interval([mine / hand for mine, hand in pairs])),
        "more, s": str(interval([mine - hand for mine, hand in pairs])),
        "runs": seconds,
    }


def _seconds_of(command: list[str]) -> float:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    return seconds


def _read(path: Path) -> pandas.DataFrame:
    if path.suffix == ".jsonl":
        return pandas.read_json(path, lines=True)
    return pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)


def _in_memory(path: Path, count: int, repeats: int) -> Iterator[dict[str, Any]]:
    from headrace import predict_table  # noqa: PLC0415 - only here is it in this process
    from headrace.handlers.sklearn_inference import SklearnModelHandlerPandas  # noqa: PLC0415 - as above

    model, table, handler = pickle.loads(path.read_bytes()), _table(count), SklearnModelHandlerPandas(str(path))
    seconds: dict[str, list[float]] = {"headrace": [], "hand": []}
    for turn in range(repeats):
        for way in ("headrace", "hand")[:: 1 if turn % 2 == 0 else -1]:
            started = time.perf_counter()
            if way == "hand":
                known = model.predict(table)
            else:
                found = predict_table(handler, table)["prediction"]
            seconds[way].append(time.perf_counter() - started)
    assert (found == known).all()
    yield _facts("in memory", count, seconds)
