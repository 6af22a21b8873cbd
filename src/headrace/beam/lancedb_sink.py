"""``LanceDBWriteConfig``: a sink of Beam's RAG types into a LanceDB table, where each id has one row."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from headrace.core.clock import backoff
from headrace.core.config import require
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.result import Caught, Failure, Stage
from headrace.core.transferable import short_repr

with extra_required("lancedb"):
    import lancedb

try:
    from apache_beam.ml.rag.ingestion.base import VectorDatabaseWriteConfig
except ModuleNotFoundError:  # an older Beam; create_write_transform() does without
    VectorDatabaseWriteConfig = object

_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
"""What makes LanceDB notice that two writers insert the same id at once: else it keeps both rows."""
_ID = pa.field("id", pa.string(), nullable=False, metadata={_PRIMARY_KEY: "true"})
_COLUMNS = (_ID, pa.field("text", pa.string()), pa.field("index", pa.int64()), pa.field("metadata", pa.string()))
_VECTOR = "vector"
_CONFLICTS = ("conflict", "concurrent", "already exists")
"""What LanceDB's errors say where another writer was faster."""
_ATTEMPTS = 30


@dataclass
class LanceDBWriteConfig(VectorDatabaseWriteConfig):
    """Writes ``EmbeddableItem`` (``Chunk``) into a table of LanceDB: ``VectorDatabaseWriteTransform(config)``.

    An item replaces the row that has its id. So a repeated bundle, a killed worker or a second run leaves one row for
    each id, if ids are the same each time (Beam's default is a random one). Workers and pipelines may write at once.
    The table is made if there is none; then the first vector decides how long all are.

    Its columns are ``id``, ``vector`` (32-bit floats), ``text`` (of an image its path or URI), ``index``, those of
    ``columns``, and ``metadata``: the rest of the item's, as JSON. The transform's output is of dead letters.

    Args:
        uri: the database: a folder, or what else LanceDB connects to, such as ``s3://bucket/vectors``.
        table: the table's name.
        columns: keys of the metadata that have columns of their own, for filters, and the types of these.
        dead_letters: whether an item that cannot be written is an output, ``(item, (error type, its repr, traceback
            lines))``, rather than an error: one without a vector, with one of another length or that is not finite, or
            with metadata of another type.
        batch_size: rows of a write; the last one of a bundle has fewer.
        connect: more arguments of ``lancedb.connect``, such as ``storage_options``.

    Raises:
        MissingExtraError: LanceDB is not installed; already at import.
        ConfigurationError: an argument is wrong; or, when the pipeline runs, the table has other columns.
    """

    uri: str
    table: str
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    dead_letters: bool = False
    batch_size: int = 10_000
    connect: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("uri", "table"):
            value = getattr(self, name)
            require(isinstance(value, str) and bool(value), f"{name} must be a text, not {value!r}.")
        for name, kind in self.columns.items():
            is_right = name not in (_VECTOR, *(one.name for one in _COLUMNS)) and isinstance(kind, pa.DataType)
            require(is_right, f"columns: {name!r} needs a type of pyarrow, and a name of its own: {kind!r}.")
        size = self.batch_size
        require(isinstance(size, int) and size >= 1, f"batch_size must be a whole number, at least 1, not {size!r}.")
        if "://" not in self.uri:
            self.uri = os.path.abspath(self.uri)  # workers may have another current folder

    def create_write_transform(self) -> beam.PTransform:
        """A transform from items to the dead letters of those that could not be written."""
        return _Write(_Table(self))


class _Write(beam.PTransform):
    """Makes the table, once, and then writes: where two make one at the same time, the second may empty it."""

    def __init__(self, table: _Table) -> None:
        super().__init__()
        self._table = table

    def expand(self, items: beam.PCollection) -> beam.PCollection:
        """The dead letters."""
        once = items.pipeline | "Once" >> beam.Create([self._table], reshuffle=False)
        made = once | "Make table" >> beam.Map(lambda table: table.make())
        return items | "Upsert" >> beam.ParDo(_Upsert(self._table), beam.pvalue.AsIter(made))


class _Upsert(beam.DoFn):
    """Collects a bundle's rows, the last one of each id, and writes them."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._rows: dict[str, dict[str, Any]] = {}

    def start_bundle(self) -> None:
        """Forgets what a failed bundle has left."""
        self._rows = {}

    def process(self, item: Any, made: Iterable[None]) -> Iterator[Any]:
        """Yields the dead letter of an item that cannot be written."""
        try:
            self._rows[item.id] = self._table.row(item)
        except _TableLostError:
            raise
        except Exception as error:
            if not self._table.config.dead_letters:
                raise
            yield Failure(None, Stage.POSTPROCESSING, 0, item, Caught.of(error)).record
        if len(self._rows) >= self._table.config.batch_size:
            self.finish_bundle()

    def finish_bundle(self) -> None:
        """Writes the rows."""
        if self._rows:
            self._table.upsert([*self._rows.values()])
            self._rows = {}


class _TableLostError(RuntimeError):
    """The table cannot be opened, which is no item's fault."""


class _Table:
    """The table; opened for each write, so as to see what others have written."""

    def __init__(self, config: LanceDBWriteConfig) -> None:
        self.config = config
        self._columns = pa.schema([*_COLUMNS, *(pa.field(name, kind) for name, kind in config.columns.items())])
        """All but the vector."""
        self._length: int | None = None

    @cached_property
    def _database(self) -> Any:
        return lancedb.connect(self.config.uri, **self.config.connect)

    def _open(self) -> Any:
        return self._database.open_table(self.config.table)

    def make(self) -> None:
        """Makes the table if there is none; raises ConfigurationError if the one there is cannot take the rows."""
        try:
            found = self._open().schema
        except ValueError:  # there is none
            found = self._database.create_table(self.config.table, schema=self._columns).schema
        where = f"table {self.config.table} in {self.config.uri}"
        for column in self._columns:
            if column.name not in found.names or found.field(column.name).type != column.type:
                raise ConfigurationError(f"{where} has no column {column.name} of {column.type}; name another table.")
        if _VECTOR in found.names and not pa.types.is_fixed_size_list(found.field(_VECTOR).type):
            raise ConfigurationError(f"{where}: its column {_VECTOR} is no list of fixed size; name another table.")
        if not any(key.startswith(_PRIMARY_KEY.encode()) for key in found.field("id").metadata or ()):
            raise ConfigurationError(
                f"{where} has no primary key, so that two writers may add an id twice; call its "
                'set_unenforced_primary_key("id"), or name another table.'
            )

    def row(self, item: Any) -> dict[str, Any]:
        """The item's row; raises ValueError if a value does not fit."""
        if not (isinstance(item.id, str) and item.id):
            raise ValueError(f"an item needs an id, a text: {short_repr(item)}")
        vector = None if item.embedding is None else item.embedding.dense_embedding
        if vector is None or item.embedding.sparse_embedding:
            raise ValueError(f"item {item.id}: LanceDB stores a dense vector, and no sparse one.")
        with np.errstate(over="ignore"):
            numbers = np.asarray(vector, np.float32)
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
            raise ValueError(f"item {item.id}: its vector is not a list of finite numbers: {short_repr(vector)}")
        if self._length is None:
            self._length = self._settled(len(numbers))
        if len(numbers) != self._length:
            raise ValueError(
                f"item {item.id}: its vector has {len(numbers)} numbers, those of table {self.config.table} have "
                f"{self._length}; a table is for vectors of one model."
            )
        return {**self._plain_values(item), _VECTOR: numbers}

    def _plain_values(self, item: Any) -> dict[str, Any]:
        rest = dict(item.metadata or {})
        values = {"id": item.id, "text": item.content.text, "index": item.index}
        if item.content.text is None and isinstance(image := getattr(item.content, "image", None), str):
            values["text"] = image
        values |= {name: rest.pop(name, None) for name in self.config.columns}
        name = "metadata"
        try:
            values[name] = json.dumps(rest, ensure_ascii=False)
            for name, value in values.items():
                pa.scalar(value, self._columns.field(name).type)
        except (TypeError, ValueError, OverflowError) as error:  # pyarrow's are such
            raise ValueError(f"item {item.id}: {name}: {error}") from error
        return values

    def _settled(self, wanted: int) -> int:
        try:
            return int(_repeated(partial(self._settle_length, wanted)))
        except Exception as error:
            raise _TableLostError(f"table {self.config.table} in {self.config.uri}: {error}") from error

    def _settle_length(self, wanted: int) -> int:
        """How long vectors are: as the table says, or as this one, the first."""
        table = self._open()
        if _VECTOR not in table.schema.names:
            table.add_columns(pa.field(_VECTOR, pa.list_(pa.float32(), wanted)))
        length: int = table.schema.field(_VECTOR).type.list_size
        return length

    def upsert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows with different ids, in one version of the table."""
        vectors = pa.FixedSizeListArray.from_arrays(np.concatenate([row[_VECTOR] for row in rows]), self._length)
        values = [pa.array([row[column.name] for row in rows], column.type) for column in self._columns]
        table = pa.table([*values, vectors], schema=self._columns.append(pa.field(_VECTOR, vectors.type)))

        def merge() -> Any:
            by_id = self._open().merge_insert("id")
            return by_id.when_matched_update_all().when_not_matched_insert_all().execute(table)

        _repeated(merge)


def _repeated(action: Callable[[], Any]) -> Any:
    """What the action returns, once no other writer gets ahead of it."""
    attempt = 1
    while True:
        try:
            return action()
        except (RuntimeError, ValueError) as error:
            if attempt == _ATTEMPTS or not any(sign in str(error) for sign in _CONFLICTS):
                raise
        # Back off after a conflict: LanceDB does not signal when the other writer is done.
        time.sleep(random.random() * backoff(attempt, 0.1, 5))  # noqa: S311 - jitter keeps no secret
        attempt += 1
