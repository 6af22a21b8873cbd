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
from zoneinfo import ZoneInfo

import pyarrow
import pyarrow.parquet

_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Count(int):
    """Of a unit of time, as Arrow has it."""

    text: str | None
    """As the output has it; None: a row with it cannot be read."""


class Made(NamedTuple):
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


def _count(number: int, text: str | None) -> Count:
    count = Count(number)
    count.text = text
    return count


def _fraction(nanoseconds: int) -> str:
    if nanoseconds % 1000:
        return f".{nanoseconds:09}"
    return f".{nanoseconds // 1000:06}" if nanoseconds else ""


def duration(nanoseconds: int) -> str:
    """As the output has it."""
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    sign = "-" if nanoseconds < 0 else ""
    parts = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
    return sign + "P{}DT{}H{}M{}".format(*parts) + _fraction(rest) + "S"


def _nanoseconds(random: Random, least: int, most: int) -> int:
    unit = random.choice([1, 1, 1000, 10**9])
    ends = [value for value in (least, most, 0, 1, -1, 999, -1000, 10**9 + 1) if least <= value <= most]
    return random.choice([*ends, random.randint(least // unit + 1, most // unit) * unit])


def _moment(zone: datetime.tzinfo | None) -> Callable[[Random], Count]:
    def moment(random: Random) -> Count:
        number = _nanoseconds(random, -(2**63), 2**63 - 1)
        seconds, rest = divmod(number, 10**9)
        utc = _START + datetime.timedelta(seconds=seconds)
        if number % 1000:  # as Arrow has it
            return _count(number, f"{utc:%Y-%m-%d %H:%M:%S}{_fraction(rest)}{'Z' if zone else ''}")
        text = utc.astimezone(zone or datetime.timezone.utc).isoformat()
        return _count(number, text[:19] + _fraction(rest) + (text[19:] if zone else ""))

    return moment


def _length(random: Random) -> Count:
    number = _nanoseconds(random, -(2**63), 2**63 - 1)
    return _count(number, str(number) if number % 1000 else duration(number))


def _time(unit: int) -> Callable[[Random], Count]:

    def time(random: Random) -> Count:
        number = _nanoseconds(random, 0, 86400 * 10**9 - 1) // unit
        seconds, rest = divmod(number * unit, 10**9)
        text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return _count(number, text + _fraction(rest))

    return time


def _nowhere(values: list[int]) -> Callable[[Random], Count]:
    return lambda random: _count(random.choice(values), None) if random.random() < 0.1 else None


ZONES = {
    "UTC": _START.tzinfo,
    "Europe/Berlin": ZoneInfo("Europe/Berlin"),
    "America/New_York": ZoneInfo("America/New_York"),
}
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
    *(Kind(pyarrow.timestamp("ns", name), _moment(zone)) for name, zone in ZONES.items()),
    Kind(pyarrow.timestamp("ns"), _moment(None)),
    Kind(pyarrow.duration("ns"), _length),
    Kind(pyarrow.time64("ns"), _time(1)),
    Kind(pyarrow.time64("us"), _time(10**3)),
    Kind(pyarrow.time32("ms"), _time(10**6)),
    Kind(pyarrow.duration("us"), lambda random: datetime.timedelta(microseconds=random.randint(-(10**15), 10**15))),
    Kind(pyarrow.date32(), lambda random: datetime.date.fromordinal(random.randint(1, 3652059))),
    Kind(pyarrow.null(), lambda random: None),
]
BEYOND = [
    Kind(pyarrow.timestamp("us", "Europe/Berlin"), _nowhere([2**62, -(2**62), 253402300799999999])),
    Kind(pyarrow.timestamp("s"), _nowhere([2**53, 2**40])),
    Kind(pyarrow.date32(), _nowhere([10**7, -(10**7)])),
]
"""Columns that are null, but for rows that cannot be read."""


def is_readable(value: Any) -> bool:
    """Whether Python has all of a row's values."""
    if isinstance(value, Count):
        return value.text is not None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return all(map(is_readable, inner))


def make(random: Random, *, columns: tuple[str, ...] | None = None, beyond: bool = False) -> Made:
    """A file; some rows may have values ``beyond`` those that Python has."""
    names = columns or random.sample(["a", "b", "é", 'q"', "", "A", "n\n"], random.choice([1, 2, 3, 5]))
    scalars = SCALARS + 3 * BEYOND if beyond else SCALARS
    kinds = {name: _kind(random, scalars, 2) for name in names}
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


def _kind(random: Random, scalars: list[Kind], depth: int) -> Kind:
    if not depth or random.random() < 0.8:
        return random.choice(scalars)
    inner = _kind(random, scalars, depth - 1)
    if inner.type == pyarrow.null() or pyarrow.types.is_dictionary(inner.type) or "[ns" in str(inner.type):
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
