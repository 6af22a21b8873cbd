"""Predictions that an earlier output has for rows that have not changed since: what ``--changed-since`` takes over.

Whether a row has changed is told by its columns as an output writes them, and whether the model has by the report of
the run that wrote the earlier output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.fingerprint import default_cache_key, fingerprint
from headrace.core.result import PredictionResult
from headrace.ipc.serialization import all_reducers
from headrace.jobs import files, reading, storage
from headrace.jobs.csv_records import CsvRecords, Quoted
from headrace.jobs.job import Job
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.opening import open_text
from headrace.metrics.report import report_of
from headrace.rows.blocks import BlockRow, BrokenLine, Record
from headrace.rows.examples import PREDICTION, RESERVED
from headrace.runtime.plan import make_plan
from headrace.runtime.prediction_cache import PredictionStore

_AT_ONCE, _KEPT_AT_ONCE = 1000, 20_000
"""Rows that are looked up together, and those that are kept in one transaction."""
_KEY_BYTES = 16
_NO_LIMIT = 1 << 62

Placed = tuple[Any, Any]
"""What a bundle takes: a row, and its place."""


def identity_of(job: Job) -> str:
    """What decides a job's predictions besides its rows, as a digest: the model's files, the handler, their options.

    Raises:
        Exception: something of it cannot be compared.
    """
    handlers = [job.handler, *(job.fallback if isinstance(job.fallback, list | tuple) else [job.fallback])]
    reducers, parts = all_reducers(), list[Any]()
    for plan in [make_plan(handler) for handler in handlers if handler is not None]:
        keys = [(name, default_cache_key(model, reducers)) for name, model in plan.models.items()]
        parts.append((keys, plan.preprocess, plan.postprocess))
    examples = job.examples
    parts += [job.inference_args, examples.columns, examples.key, examples.bare, job.explode, job.contents]
    return fingerprint(parts, reducers).hex()


class Earlier(NamedTuple):
    """An earlier output, and where its predictions are kept while a run goes on; pickled to workers."""

    output: str
    path: str
    """Of the predictions by their rows; its folder is the run's."""
    names: tuple[str, ...] | None
    """The columns that decide whether a row has changed; None: all of the input's."""
    explode: bool
    is_csv: bool
    """Whether it tells texts from lists and objects in no way: what is taken over goes into CSV again."""

    @classmethod
    def of(cls, job: Job, folder: str) -> Earlier | None:
        """What a job takes over; None: nothing, since what decides the predictions has changed.

        Raises:
            ConfigurationError: the earlier output, or the job, does not allow it.
        """
        output = job.changed_since
        assert output is not None
        _refuse(job, output, folder)
        record = report_of(output)
        if record is None or not record.get("identity"):
            raise ConfigurationError(
                f"--changed-since: no report beside {output} says what made it. Let each run write one there, with "
                "--report and a name of its own in that folder; one of a retry, or older than OUT, does not count."
            )
        try:
            if identity_of(job) != record["identity"]:
                return None
        except Exception as error:
            raise ConfigurationError(
                f"--changed-since: what decides the predictions cannot be compared: {error}"
            ) from error
        seen, key = job.examples.columns, job.examples.key
        names = None if seen is None else tuple(dict.fromkeys((*seen, *([key] if key else ()))))
        sources = files.match([output])
        columns = reading.infer_schema(sources).columns
        for name in job.examples.all_columns if names is None else names:
            if columns and name not in columns:
                raise ConfigurationError(
                    f"--changed-since: {output} has no column {name!r}, by which rows are compared: --keep it."
                )
        return cls(output, storage.join(folder, "earlier.db"), names, job.explode, sources[0].format == "csv")

    def fill(self, check: Callable[[], None]) -> None:
        """Keeps the predictions of the earlier output; ``check`` is called repeatedly, and may raise.

        Raises:
            ConfigurationError: the output cannot be read.
            Exception: the predictions cannot be written.
        """
        rows = chain.from_iterable(map(_rows_of_csv if self.is_csv else reading.read_rows, files.match([self.output])))
        with closing(PredictionStore(self.path, _NO_LIMIT)) as store:
            while some := list(islice(rows, _KEPT_AT_ONCE)):
                check()
                store.put(sorted(self._items(some)))

    def split(
        self, rows: Iterable[Placed], take_over: Callable[[list[BlockRow], list[Any]], object]
    ) -> Iterator[Placed]:
        """Yields the rows that are to be predicted; the others go to ``take_over``, with their predictions."""
        rows = iter(rows)
        with closing(PredictionStore(self.path, _NO_LIMIT)) as store:
            while some := list(islice(rows, _AT_ONCE)):
                keys = [self._key(row) for row, _ in some]
                found = store.get([key for key in keys if key is not None])
                known = [(place, found[key]) for key, (_, place) in zip(keys, some, strict=True) if key in found]
                if known:
                    take_over([place for place, _ in known], [_prediction(text) for _, text in known])
                yield from (pair for key, pair in zip(keys, some, strict=True) if key not in found)

    def _items(self, rows: Sequence[Record]) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            if isinstance(row, BrokenLine):
                raise ConfigurationError(f"--changed-since: {row.file}, line {row.number}: {as_type_name(row.error)}.")
            answer = {name: row[name] for name in row if name in RESERVED or self._is_exploded(name)}
            key = self._key({name: value for name, value in row.items() if name not in answer})
            if key is not None and answer:
                yield key, as_line([self._value(answer), answer.get("model_id")])

    def _is_exploded(self, name: str) -> bool:
        return self.explode and name.startswith(f"{PREDICTION}_")

    def _value(self, answer: Mapping[str, Any]) -> Any:
        """A prediction as the writer of an output takes it."""
        whole = answer.get(PREDICTION)
        parts = {name.removeprefix(f"{PREDICTION}_"): one for name, one in answer.items() if self._is_exploded(name)}
        return parts if parts and whole is None else whole  # Parquet has all columns in each row

    def _key(self, row: Record) -> bytes | None:
        """What tells a row from rows with other values; None: nobody can tell."""
        if isinstance(row, BrokenLine):
            return None
        some = dict(sorted(row.items())) if self.names is None else {name: row.get(name) for name in self.names}
        try:
            if self.is_csv:
                nested = {name: value for name, value in some.items() if isinstance(value, list | dict)}
                some |= {name: as_line(value)[:-1].decode() for name, value in nested.items()}
            return hashlib.blake2b(as_line(some), digest_size=_KEY_BYTES).digest()
        except JsonEncodeError:
            return None


def _rows_of_csv(source: files.Source) -> Iterator[Record]:
    """The rows of an output: what is in quotes is text, as are lists and objects, and the rest are JSON's values."""
    with open_text(source) as lines:
        records = CsvRecords(lines, source.delimiter, source.path)
        for row in records.sample(records.header()):
            yield row if isinstance(row, BrokenLine) else {name: _cell(field) for name, field in row.items()}


def _cell(field: str | None) -> Any:
    with suppress(ValueError):  # somebody has edited it
        return field if field is None or isinstance(field, Quoted) else json.loads(field)
    return field


def _prediction(text: bytes) -> Any:
    value, model_id = json.loads(text)
    return value if model_id is None else PredictionResult(None, value, model_id)


def _refuse(job: Job, output: str, folder: str) -> None:
    if storage.is_remote(output) or storage.is_remote(folder):
        raise ConfigurationError("--changed-since takes an output on this machine, and --output another one.")
    if not storage.exists(output):
        raise ConfigurationError(f"--changed-since: there is no file {output!r}.")
    if job.runner is not None or job.options or job.folder is not None:
        raise ConfigurationError(
            "--changed-since is for runs on this machine with one output; leave --runner and Beam's options out. An "
            "output that is a FOLDER/ gets only inputs that are new or have changed anyway."
        )
    if files.match([output])[0].format == "csv" and files.output_format(job.output) != "csv":
        raise ConfigurationError(
            f"--changed-since: {output} is CSV, which does not tell a text from a list or an object; let --output be "
            "CSV, too."
        )
