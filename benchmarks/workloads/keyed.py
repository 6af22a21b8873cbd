"""Many models by key, with room for a few: how often they are loaded, with the time that it takes."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy
from apache_beam.ml.inference import base
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from measure import BEAM, HEADRACE
from outputs import OutputsDifferError

from headrace.beam import KeyedModelHandler, KeyModelMapping, RunInference

MODELS, ROOM = 20, 5

TITLE = f"{MODELS} models by key with room for {ROOM}, keys by Zipf's law"

ABOUT = f"""\
{MODELS} networks of one layer, of 1 MB each, in files; `max_models_per_worker_hint={ROOM}`. The key of rank r comes as
often as 1/r says. Both sides get the same elements in the same order, in one bundle, in this process and in turn, and
must predict the same. *Loads* are calls of `load_model`; *seconds* are medians of a pipeline from its submission to its
end. *Grouped before* is the pipeline with a GroupByKey on the key in front of Beam's transform, as its documentation
advises; *fewer* is by how much, beside Beam without that."""

_COLUMNS, _CLASSES = 512, 256
_GROUPED = f"{BEAM}, grouped before"
_SIDES = (HEADRACE, BEAM, _GROUPED)
_SIZES: Mapping[str, Mapping[str, int]] = {
    "adaptive": {},
    "of 1,000": {"min_batch_size": 1000, "max_batch_size": 1000},
    "of 100": {"min_batch_size": 100, "max_batch_size": 100},
}


class Network(base.ModelHandler):  # type: ignore[misc] - Beam's classes are Any
    """One layer; written for Beam, both sides run it. Each load adds a byte to a file."""

    def __init__(self, path: str, loads: str) -> None:
        super().__init__()
        self._path = path
        self._loads = loads

    def load_model(self) -> numpy.ndarray:
        """Its weights."""
        with Path(self._loads).open("ab") as loads:
            loads.write(b"+")
        weights: numpy.ndarray = pickle.loads(Path(self._path).read_bytes())
        return weights

    def run_inference(
        self, batch: Sequence[numpy.ndarray], model: numpy.ndarray, inference_args: dict[str, Any] | None = None
    ) -> list[int]:
        """The class of each row."""
        return (numpy.stack(batch) @ model).argmax(axis=1).tolist()  # type: ignore[no-any-return] - numpy's Any


class _Sized(KeyedModelHandler[Any, Any, Any, Any]):
    """With sizes."""

    sizes: Mapping[str, int]

    def batch_elements_kwargs(self) -> Mapping[str, int]:
        return self.sizes


class _BeamsSized(base.KeyedModelHandler):  # type: ignore[misc] - the same
    """With sizes."""

    sizes: Mapping[str, int]

    def batch_elements_kwargs(self) -> Mapping[str, int]:
        return self.sizes


@dataclass(frozen=True)
class Trial:
    """One pipeline: which models, which batches, how many rows."""

    folder: Path
    sizes: Mapping[str, int]
    rows: int

    def run(self, side: str) -> tuple[float, int, list[tuple[str, int]]]:
        """Seconds, loads, and the predictions."""
        loads = self.folder / "loads"
        loads.write_bytes(b"")
        _kept.clear()
        pipeline = beam.Pipeline(runner=FnApiRunner())
        pairs = pipeline | "Start" >> beam.Create([self.rows]) | "Rows" >> beam.FlatMap(make_rows)
        if side == _GROUPED:
            pairs = pairs | beam.GroupByKey() | "Ungrouped" >> beam.FlatMapTuple(_each)
        _ = pairs | self._transform(side, str(loads)) | "Keep" >> beam.Map(_keep)
        started = time.perf_counter()
        pipeline.run().wait_until_finish()
        return time.perf_counter() - started, loads.stat().st_size, sorted(_kept)

    def _transform(self, side: str, loads: str) -> beam.PTransform:
        paths = {f"key {number}": str(self.folder / f"{number}.pickle") for number in range(MODELS)}
        handlers = {key: Network(path, loads) for key, path in paths.items()}
        ours: Any
        if side == HEADRACE:
            ours = _Sized([KeyModelMapping([key], one) for key, one in handlers.items()], ROOM)
        else:
            ours = _BeamsSized([base.KeyModelMapping([key], one) for key, one in handlers.items()], ROOM)
        ours.sizes = self.sizes
        return RunInference(ours) if side == HEADRACE else base.RunInference(ours)


_kept: list[Any] = []


def _keep(prediction: Any) -> None:
    _kept.append(prediction)


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:
    """One row for each batch size and side."""
    write_models(folder)
    for name, sizes in _SIZES.items():
        trial = Trial(folder, sizes, 2_000 if quick else 3_000)
        runs: dict[str, list[tuple[float, int]]] = {side: [] for side in _SIDES}
        for _ in range(repeats):
            outputs = {}
            for side in _SIDES:
                *figures, outputs[side] = trial.run(side)
                runs[side].append((figures[0], figures[1]))
            if not outputs[HEADRACE] == outputs[BEAM] == outputs[_GROUPED]:
                raise OutputsDifferError(f"{name}: the sides predict differently")
        loads = {side: statistics.median(load for _, load in runs[side]) for side in _SIDES}
        for side in _SIDES:
            yield {
                "batches": name,
                "transform": side,
                "loads": f"{loads[side]:g}",
                "fewer": f"{loads[BEAM] / loads[side]:.1f}x",
                "pipeline s": f"{statistics.median(seconds for seconds, _ in runs[side]):.2f}",
            }


def make_rows(count: int) -> Iterator[tuple[str, numpy.ndarray]]:
    """Pairs of a key and a row, the same in every run."""
    rng = numpy.random.default_rng(7)
    shares = 1 / numpy.arange(1, MODELS + 1)
    keys = rng.choice(MODELS, size=count, p=shares / shares.sum())
    for key in keys:
        yield f"key {key}", rng.normal(size=_COLUMNS)


def _each(key: str, rows: Sequence[numpy.ndarray]) -> Iterator[tuple[str, numpy.ndarray]]:
    return ((key, row) for row in rows)


def write_models(folder: Path) -> None:
    """Each in its file."""
    for number in range(MODELS):
        weights = numpy.random.default_rng(number).normal(size=(_COLUMNS, _CLASSES))
        (folder / f"{number}.pickle").write_bytes(pickle.dumps(weights))
