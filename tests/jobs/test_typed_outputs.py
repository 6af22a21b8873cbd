"""A Parquet output has the columns of its Parquet input as they are, whatever the handler takes, and after retries."""

import datetime
import decimal
import functools
import io

import pyarrow
import pyarrow.parquet
import pytest

from headrace import ModelHandler
from headrace.jobs import parquet_tables
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.letters import match_dead_letters, schema_of_letters
from headrace.jobs.output_batches import kept_columns
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples

OLD = int(pyarrow.__version__.partition(".")[0]) < 20


class Answers(ModelHandler):
    """Answers each row in a form of its own; every tenth fails at first."""

    def __init__(self, answer, fails=False):
        self._answer, self._fails = answer, fails

    def load_model(self):
        """None is needed."""
        return self._answer

    def run_inference(self, batch, model, inference_args=None):
        """The model's answers."""
        if self._fails and any(row["id"] % 10 == 0 for row in batch):
            raise ValueError("not yet")
        return [model(row["id"]) for row in batch]


def run(handler, sources, output, *, letters=False, **options):
    columns = schema_of_letters(sources, {}).columns if letters else infer_schema(sources).columns
    return Run(Job(handler, sources, str(output), Examples(None, tuple(columns)), **options)).execute()


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
    report = run(Answers(answer), match([str(good)]), tmp_path / "out.parquet")
    found, given = (pyarrow.parquet.read_table(path) for path in (tmp_path / "out.parquet", good))
    assert (report.predictions, found.schema.field("prediction").type) == (given.num_rows, kind)
    assert without(found, "prediction") == without(given)


def test_in_columns_the_same(tmp_path, good, both_ways):
    keep = ("single", "day", "money", "category", "nested", "raw")
    (schema, _), _, _, _ = both_ways(good, output="out.parquet", keep=keep)
    given = pyarrow.parquet.read_schema(good)
    assert schema.types[: len(keep)] == [given.field(name).type for name in keep]


def retried(folder, sources):
    """The rows of a run, of which some come by a retry."""
    run(Answers(float, fails=True), sources, folder / "out.parquet")
    letters = folder / "out.dead-letters.jsonl"
    first = pyarrow.parquet.read_table(folder / "out.parquet")
    retry = functools.partial(run, Answers(float), match_dead_letters([str(letters)]), letters=True)
    retry(folder / "out.parquet", dead_letters=str(letters), into=True)
    found = pyarrow.parquet.read_table(folder / "out.parquet")
    assert 0 < first.num_rows < found.num_rows
    return found


def test_rows_that_are_retried_have_the_types_of_the_others(tmp_path, good):
    found, given = retried(tmp_path, match([str(good)])), pyarrow.parquet.read_table(good)
    inexact = "holes"  # JSON has no NaN
    assert without(found, "prediction", inexact) == without(given, inexact)


def in_files(folder, *columns):
    """A file for each column ``x``; its rows are numbered."""
    for number, column in enumerate(columns):
        pyarrow.parquet.write_table(
            pyarrow.table({"id": range(len(column)), "x": column}), folder / f"{number}.parquet"
        )
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
    run(Answers(float), in_files(tmp_path, *columns), tmp_path / "out" / "all.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out" / "all.parquet")["x"]
    assert (found.type.equals(kind), found.to_pylist()) == (True, values)


def categories(texts, *, ordered=False):
    """Texts as bytes that stand for them."""
    column = texts.dictionary_encode()
    codes = column.indices.cast(pyarrow.int8())
    return pyarrow.DictionaryArray.from_arrays(codes, column.dictionary, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_categories_may_be_others_in_each_file(tmp_path, ordered):
    texts = [pyarrow.array([f"{name}{number}" for number in range(100)]) for name in "ab"]
    sources = in_files(tmp_path, *(categories(some, ordered=ordered) for some in texts))
    run(Answers(float), sources, tmp_path / "out" / "all.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out" / "all.parquet")["x"]
    assert (found.type.ordered, found.to_pylist()) == (ordered, [text for some in texts for text in some.to_pylist()])


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


KINDS = [
    pyarrow.timestamp("ms", "Europe/Berlin"), pyarrow.timestamp("ns", "Europe/Berlin"), pyarrow.time32("ms"),
    pyarrow.time64("us"), pyarrow.time64("ns"), pyarrow.duration("s"), pyarrow.duration("us"), pyarrow.duration("ns"),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_times_that_are_retried(tmp_path, kind):
    given = pyarrow.array(range(2000), pyarrow.int64() if kind.bit_width == 64 else pyarrow.int32()).cast(kind)
    found = retried(tmp_path, in_files(tmp_path, given))["x"]
    assert (found.type, found.combine_chunks()) == (kind, given)


DAY, WHOLE = datetime.date(2024, 2, 29), datetime.timedelta(hours=-1)
HOUR = WHOLE + datetime.timedelta(microseconds=1)
NESTED = {
    "days by name": ([[("a", DAY), ("b", None)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.date32())),
    "times by number": ([[(1, HOUR)], None], pyarrow.map_(pyarrow.int64(), pyarrow.duration("us"))),
    "lists of days": ([[DAY, None], []], pyarrow.list_(pyarrow.date32())),
    "records": (
        [{"day": DAY, "hour": WHOLE, "raw": b"\xff", "price": [decimal.Decimal("1.50")]}, None],
        pyarrow.struct(
            {
                "day": pyarrow.date32(),
                "hour": pyarrow.duration("ms"),
                "raw": pyarrow.binary(),
                "price": pyarrow.list_(pyarrow.decimal128(9, 2)),
            }
        ),
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_that_are_retried(tmp_path, name):
    values, kind = NESTED[name]
    given = pyarrow.array(values * 20, kind)
    pyarrow.parquet.write_table(pyarrow.table({"x": given}), tmp_path / "alone")
    read = pyarrow.parquet.read_table(tmp_path / "alone")["x"]  # pyarrow 16 forgets the types in a map
    found = retried(tmp_path, in_files(tmp_path, given))["x"]
    assert (found.type, found.to_pylist()) == (read.type, read.to_pylist())


def test_vectors_that_one_file_lacks_can_be_read(tmp_path):
    """Arrow reads no nulls among lists of one size from Parquet."""
    vectors = pyarrow.array([[0.5, 2.0]], pyarrow.list_(pyarrow.float32(), 2))
    for name, table in {"a": {"id": [1], "x": vectors}, "b": {"id": [2]}}.items():
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / f"{name}.parquet")
    run(Answers(float), match([str(tmp_path / "?.parquet")]), tmp_path / "all.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "all.parquet")["x"].to_pylist() == [[0.5, 2.0], None]
