"""A Parquet output has the columns of its Parquet input as they are, whatever the handler takes, and after retries."""

import datetime
import decimal
import io

import pyarrow
import pyarrow.parquet
import pytest

from headrace.jobs import parquet_tables
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.letters import match_dead_letters, schema_of_letters
from headrace.jobs.output_batches import kept_columns
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from toys import Acting

OLD = int(pyarrow.__version__.partition(".")[0]) < 20


def run(answer, sources, output, *, letters=False, **options):
    """Answers each row by its number; gives the report and the table."""
    columns = schema_of_letters(sources, {}).columns if letters else infer_schema(sources).columns
    handler = Acting(lambda batch: [answer(row["id"]) for row in batch])
    report = Run(Job(handler, sources, str(output), Examples(None, tuple(columns)), **options)).execute()
    return report, pyarrow.parquet.read_table(output)


def without(table, *names):
    """The types and the values of other columns; NaN is like NaN."""
    table = table.drop_columns([name for name in names if name in table.column_names])
    return table.schema, repr(table.to_pylist())


ANSWERS = {
    "numbers": (lambda number: number, pyarrow.int64()),
    "objects": (lambda number: {"label": f"n{number}"}, pyarrow.struct([("label", pyarrow.string())])),
    "of two kinds": (lambda number: number if number % 2 else "even", pyarrow.string()),
}


@pytest.mark.parametrize("answers", ANSWERS)
def test_columns_are_those_of_the_input(tmp_path, good, answers):
    answer, kind = ANSWERS[answers]
    report, found = run(answer, match([str(good)]), tmp_path / "out.parquet")
    given = pyarrow.parquet.read_table(good)
    assert (report.predictions, found.schema.field("prediction").type) == (given.num_rows, kind)
    assert without(found, "prediction") == without(given)


def test_in_columns_the_same(good, both_ways):
    keep = ("single", "day", "money", "category", "nested", "raw")
    (schema, _), _, _, _ = both_ways(good, output="out.parquet", keep=keep)
    given = pyarrow.parquet.read_schema(good)
    assert schema.types[: len(keep)] == [given.field(name).type for name in keep]


TIMES = [
    pyarrow.timestamp("ms", "Europe/Berlin"), pyarrow.timestamp("ns", "Europe/Berlin"), pyarrow.time32("ms"),
    pyarrow.time64("us"), pyarrow.time64("ns"), pyarrow.duration("s"), pyarrow.duration("us"), pyarrow.duration("ns"),
]  # fmt: skip
DAY, WHOLE = datetime.date(2024, 2, 29), datetime.timedelta(hours=-1)
HOUR = WHOLE + datetime.timedelta(microseconds=1)
RECORD = {"day": DAY, "hour": WHOLE, "raw": b"\xff", "price": [decimal.Decimal("1.50")]}
FIELDS = {
    "day": pyarrow.date32(),
    "hour": pyarrow.duration("ms"),
    "raw": pyarrow.binary(),
    "price": pyarrow.list_(pyarrow.decimal128(9, 2)),
}
NESTED = {
    "days by name": ([[("a", DAY), ("b", None)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.date32())),
    "times by number": ([[(1, HOUR)], None, None], pyarrow.map_(pyarrow.int64(), pyarrow.duration("us"))),
    "lists of days": ([[DAY, None], [], []], pyarrow.list_(pyarrow.date32())),
    "records": ([RECORD, None, None], pyarrow.struct(FIELDS)),
}


def test_rows_that_are_retried_have_the_types_of_the_others(tmp_path, good):
    count = 900
    given = pyarrow.parquet.read_table(good).slice(0, count)
    for kind in TIMES:
        numbers = pyarrow.array(range(count), pyarrow.int64() if kind.bit_width == 64 else pyarrow.int32())
        given = given.append_column(str(kind), numbers.cast(kind))
    for name, (values, kind) in NESTED.items():
        given = given.append_column(name, pyarrow.array(values * (count // 3), kind))
    pyarrow.parquet.write_table(given, tmp_path / "in.parquet")
    given = pyarrow.parquet.read_table(tmp_path / "in.parquet")  # pyarrow 16 forgets the types in a map

    def fails(number):
        if number % 10 == 0:
            raise ValueError("not yet")
        return 0.5

    letters = str(tmp_path / "out.dead-letters.jsonl")
    report, _ = run(fails, match([str(tmp_path / "in.parquet")]), tmp_path / "out.parquet")
    assert report.failed == count // 10
    retry = {"letters": True, "dead_letters": letters, "into": True}
    _, found = run(float, match_dead_letters([letters]), tmp_path / "out.parquet", **retry)
    inexact = "holes"  # JSON has no NaN
    assert without(found, "prediction", inexact) == without(given, inexact)


def in_files(folder, *columns):
    """A file for each column ``x``; its rows are numbered."""
    for number, column in enumerate(columns):
        table = pyarrow.table({"id": range(len(column)), "x": column})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet")
    return match([str(folder / "*.parquet")])


LISTS = [pyarrow.array([[0.5, 2.0]], kind(pyarrow.float32())) for kind in (pyarrow.list_, pyarrow.large_list)]
NUMBERS = [pyarrow.array([0.5, 2.0], kind) for kind in (pyarrow.float32(), pyarrow.float64())]
ONE, SEVERAL = pyarrow.array([[1.0]], pyarrow.list_(pyarrow.float64(), 1)), pyarrow.array(["a", None])


@pytest.mark.parametrize(
    ("columns", "kind", "values"),
    [
        (([None, None], *NUMBERS), pyarrow.float64(), [None, None, 0.5, 2.0, 0.5, 2.0]),
        ((*LISTS, ONE), pyarrow.list_(pyarrow.float64()), [[0.5, 2.0], [0.5, 2.0], [1.0]]),
        (([1.5, float("nan")], SEVERAL), pyarrow.string(), ["1.5", None, "a", None]),
    ],
    ids=["numbers", "vectors", "no number"],
)
def test_values_of_several_types(tmp_path, columns, kind, values):
    _, table = run(float, in_files(tmp_path, *columns), tmp_path / "out" / "all.parquet")
    assert (table["x"].type.equals(kind), table["x"].to_pylist()) == (True, values)


def categories(texts, *, ordered=False):
    """Texts as bytes that stand for them."""
    column = texts.dictionary_encode()
    codes = column.indices.cast(pyarrow.int8())
    return pyarrow.DictionaryArray.from_arrays(codes, column.dictionary, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_categories_may_be_others_in_each_file(tmp_path, ordered):
    texts = [pyarrow.array([f"{name}{number}" for number in range(100)]) for name in "ab"]
    sources = in_files(tmp_path, *(categories(some, ordered=ordered) for some in texts))
    found = run(float, sources, tmp_path / "out" / "all.parquet")[1]["x"]
    assert (found.type.ordered, found.to_pylist()) == (ordered, [text for some in texts for text in some.to_pylist()])


def test_vectors_that_one_file_lacks_can_be_read(tmp_path):
    """Arrow reads no nulls among lists of one size from Parquet."""
    vectors = pyarrow.array([[0.5, 2.0]], pyarrow.list_(pyarrow.float32(), 2))
    for name, table in {"a": {"id": [1], "x": vectors}, "b": {"id": [2]}}.items():
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / f"{name}.parquet")
    _, found = run(float, match([str(tmp_path / "?.parquet")]), tmp_path / "all.parquet")
    assert found["x"].to_pylist() == [[0.5, 2.0], None]


VIEWS = pytest.param("string_view", marks=pytest.mark.skipif(OLD, reason="this pyarrow reads no views"))


@pytest.mark.parametrize("kind", ["dictionary", VIEWS])
def test_what_rows_share_is_not_written_for_each_batch(kind):
    column = pyarrow.array([f"{number:0100}" for number in range(1000)])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    batch = pyarrow.record_batch({"x": column})
    pieces = [kept_columns(batch.slice(place, 1), None, typed=True)["x"] for place in range(10)]
    assert {str(piece.type) for piece in pieces} == {str(column.type)}
    assert sum(piece.nbytes for piece in pieces) < 5000


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_string(), pyarrow.list_(pyarrow.string())], ids=str)
def test_row_groups_have_few_long_values(monkeypatch, kind):
    """Memory holds one while a file is joined."""
    monkeypatch.setattr(parquet_tables, "GROUP_BYTES", 10_000)
    values = ["x" * 1000] * 100
    column = pyarrow.array([[text] for text in values] if pyarrow.types.is_list(kind) else values, kind)
    file = io.BytesIO()
    parquet_tables.write_parquet(file, lambda: [pyarrow.table({"x": column})], lambda: None)
    assert pyarrow.parquet.ParquetFile(file).metadata.num_row_groups > 9
