"""Random Parquet files, with what each row is; known from how a file is made, not from any reader."""

from __future__ import annotations

import datetime
import decimal
import io
import math
import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Made(NamedTuple):
    """A file."""

    content: bytes
    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    """The columns whose types are numbers."""
    records: list[dict[str, Any]]
    """The rows, as Python has them; a mapping is a list of pairs."""


class Kind(NamedTuple):
    """A type, and how its values are made."""

    type: Any
    value: Callable[[Random], Any]
    is_number: bool = False


def _integer(least: int, most: int) -> Callable[[Random], int]:
    ends = [value for value in (least, most, 0, 1, 3, 2**53, 2**53 + 1, 2**62) if least <= value <= most]
    return lambda random: random.choice([*ends, random.randint(max(least, -50), min(most, 50))])


def _float(random: Random) -> float:
    return random.choice([0.0, -0.0, 0.1, 1e10, 123456789.0, 1e-7, 1e300, math.nan, math.inf, random.gauss(0, 100)])


def _single(random: Random) -> float:
    value = _float(random)
    return float(struct.unpack("f", struct.pack("f", 2.5 if math.isfinite(value) and abs(value) > 1e38 else value))[0])


def _text(random: Random) -> str:
    return "".join(random.choices('ab"\\\n\x00\u2028é\U0001f600 1', k=random.choice([0, 1, 5])))


def _decimal(random: Random) -> decimal.Decimal:
    return decimal.Decimal(random.randint(-(10**37), 10**37)).scaleb(-4, decimal.Context(prec=38))


SCALARS = [
    Kind(pyarrow.int64(), _integer(-(2**63), 2**63 - 1), is_number=True),
    Kind(pyarrow.int8(), _integer(-128, 127), is_number=True),
    Kind(pyarrow.uint64(), _integer(0, 2**64 - 1), is_number=True),
    Kind(pyarrow.float64(), _float, is_number=True),
    Kind(pyarrow.float32(), _single, is_number=True),
    Kind(pyarrow.bool_(), lambda random: random.random() < 0.5, is_number=True),
    Kind(pyarrow.string(), _text),
    Kind(pyarrow.large_string(), _text),
    Kind(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), _text),
    Kind(pyarrow.binary(), lambda random: random.randbytes(random.randrange(5))),
    Kind(pyarrow.decimal128(38, 4), _decimal),
    Kind(
        pyarrow.timestamp("us", "UTC"),
        lambda random: _START + datetime.timedelta(microseconds=random.randint(-(10**15), 10**15)),
    ),
    Kind(pyarrow.date32(), lambda random: datetime.date.fromordinal(random.randint(1, 3652059))),
    Kind(pyarrow.null(), lambda random: None),
]


def make(random: Random, *, columns: tuple[str, ...] | None = None) -> Made:
    """A file."""
    names = columns or random.sample(["a", "b", "é", 'q"', "", "A", "n\n"], random.choice([1, 2, 3, 5]))
    kinds = {name: _kind(random, 2) for name in names}
    count = random.choice([0, 1, 2, 7, 40])
    lacking = {name: random.choice([0, 0, 0.2]) for name in names}
    values = {name: [_value(random, kind, lacking[name]) for _ in range(count)] for name, kind in kinds.items()}
    arrays = [pyarrow.array(values[name], kinds[name].type) for name in names]
    table = pyarrow.Table.from_arrays(arrays, names=list(names))
    file = io.BytesIO()
    options = {"use_dictionary": random.random() < 0.5, "compression": random.choice(["snappy", "zstd", "none"])}
    pyarrow.parquet.write_table(table, file, row_group_size=random.choice([1, 3, 1000]), **options)
    records = [{name: values[name][row] for name in names} for row in range(count)]
    numbers = tuple(name for name, kind in kinds.items() if kind.is_number)
    return Made(file.getvalue(), tuple(names), numbers, records)


def _value(random: Random, kind: Kind, lacking: float) -> Any:
    return None if random.random() < lacking else kind.value(random)


def _kind(random: Random, depth: int) -> Kind:
    if not depth or random.random() < 0.8:
        return random.choice(SCALARS)
    inner = _kind(random, depth - 1)
    if inner.type == pyarrow.null() or pyarrow.types.is_dictionary(inner.type):
        inner = SCALARS[0]

    def several(random: Random) -> list[Any]:
        return [_value(random, inner, 0.2) for _ in range(random.randrange(4))]

    return random.choice(
        [
            Kind(pyarrow.list_(inner.type), several),
            Kind(
                pyarrow.map_(pyarrow.string(), inner.type), lambda random: [(_text(random), x) for x in several(random)]
            ),
            Kind(
                pyarrow.struct([("x", inner.type), ("y", pyarrow.string())]),
                lambda random: {"x": _value(random, inner, 0.2), "y": _text(random)},
            ),
        ]
    )
