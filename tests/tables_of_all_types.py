"""Parquet files, and a model, for tests of what becomes of columns."""

import datetime
import decimal

import numpy
import pyarrow
import pyarrow.parquet
from sklearn.base import BaseEstimator

OUTPUTS = ("out.jsonl", "out.parquet")


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def write_columns_of_all_types(path):
    """1,500 rows of Parquet; of the columns a and b, 13 stands in the first in each 500th row."""
    rng = numpy.random.default_rng(5)
    count = 1500
    a = rng.normal(size=count) * 20
    a[::500] = 13
    return parquet(
        path,
        id=pyarrow.array(range(count)),
        a=a,
        b=pyarrow.array(rng.integers(-9, 9, count), pyarrow.int32()),
        small=pyarrow.array([None if n % 7 == 0 else n % 100 for n in range(count)], pyarrow.uint8()),
        single=pyarrow.array(rng.normal(size=count), pyarrow.float32()),
        holes=pyarrow.array(
            [None if n % 3 == 0 else [n / 7, float("nan"), 1e300, float("inf")][n % 4] for n in range(count)]
        ),
        text=[None if n % 5 == 0 else f'{n} "\\\n\té\u2028\x7f' for n in range(count)],
        category=pyarrow.array([f"c{n % 3}" for n in range(count)]).dictionary_encode(),
        yes=[None if n % 11 == 0 else n % 2 == 0 for n in range(count)],
        day=[datetime.date(2020, 1, 1) + datetime.timedelta(n) for n in range(count)],
        moment=pyarrow.array(
            [datetime.datetime(2020, 1, 1, 5, n % 60) for n in range(count)], pyarrow.timestamp("us", "UTC")
        ),
        raw=[b"\x00\xff" * (n % 3) for n in range(count)],
        money=[decimal.Decimal(n) / 4 for n in range(count)],
        nested=[{"x": n, "y": [n, None, "z"][: n % 4] and [str(n)]} for n in range(count)],
        listed=[[float(n), None] for n in range(count)],
        nothing=pyarrow.nulls(count),
        big=pyarrow.array([2**63 + n if n % 1000 == 0 else n for n in range(count)], pyarrow.uint64()),
        huge=[2**53 + 1 + n for n in range(count)],
    )


class Describes(BaseEstimator):
    """Predicts what it sees of each row; one that holds 1313 fails."""

    def predict(self, frame):
        """A text for each row."""
        if (frame == 1313).any(axis=None):
            raise ValueError("1313 again")
        dtypes = list(map(str, frame.dtypes))
        return numpy.array([repr([*zip(frame.columns, dtypes, row)]) for row in frame.itertuples(index=False)])
