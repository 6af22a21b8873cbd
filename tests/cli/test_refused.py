"""A run with too many failed rows is refused: the earlier output stays, and the dead letters say why."""

from functools import partial

import pytest

ROWS = [{"a": n if n % 5 else "x", "b": n} for n in range(20)]  # every fifth fails
CSV = "a,b\n" + "".join(f"{row['a']},{row['b']}\n" for row in ROWS)
BAD = [{"a": "x", "b": n} for n in range(3)]
OLD = {"p.jsonl": b"old\n", "p.dead-letters.jsonl": b"old letters\n"}
FAILED = "p.dead-letters.failed.jsonl"


@pytest.fixture
def run(folder, run):
    """Runs where there is an output of an earlier run."""
    for name, content in OLD.items():
        folder.write(name, content.decode())
    return partial(run, "--columns", "a,b")


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_run_in_which_every_row_fails_is_refused(folder, run, resume):
    folder.write("in.jsonl", BAD)
    result = run(*resume)
    assert result.code == 3
    assert result.error == (
        f"every row failed (3 of 3); {folder.path / 'p.jsonl'} was not written. The model was given the 2 columns "
        "a, b; if it needs others, name them with --columns."
    )
    assert (result.summary["dead letters in"], "written" in result.summary) == (str(folder.path / FAILED), False)
    assert "  3 x inference TypeError: unsupported operand type(s) for +: 'int' and 'str'\n" in result.out
    assert [letter["row"] for letter in folder.rows(FAILED)] == BAD
    assert OLD.items() <= folder.contents().items()
    assert folder.names() == sorted(["in.jsonl", FAILED, *OLD])
    assert run("--handler-arg", "plus=1", *resume).code == 3  # it may be tried again at once


@pytest.mark.parametrize(("name", "content", "handler"), [("in.jsonl", ROWS, "Add"), ("in.csv", CSV, "InColumns")])
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_run_with_more_failures_than_allowed_is_refused(folder, run, name, content, handler, resume):
    """Rows with rows: the same row by row and in columns."""
    folder.write(name, content)
    result = run("--threshold", "19%", *resume, inputs=(name,), handler=handler)
    assert result.code == 3
    assert result.error.startswith(
        f"too many rows failed: 4 of 20 (20%), and --threshold allows 19%; {folder.path / 'p.jsonl'} was not written."
    )
    assert [letter["row"]["b"] for letter in folder.rows(FAILED)] == [0, 5, 10, 15]
    assert OLD.items() <= folder.contents().items()
    again = run("--threshold", 0.2, *resume, inputs=(name,), handler=handler)
    assert (again.code, again.err) == (0, "")
    assert again.summary.get("done before") == ("20" if resume else None)
    assert len(folder.rows("p.jsonl")) == 16
    assert len(folder.rows("p.dead-letters.jsonl")) == 4
    assert folder.names() == sorted([name, *OLD])


@pytest.mark.parametrize("threshold", [(), ("--threshold", 0)])
def test_a_run_without_rows_succeeds_and_says_so(folder, run, threshold):
    folder.write("in.jsonl", "")
    result = run(*threshold)
    assert result.code == 0
    assert result.err == "warning: there are no rows in the input.\n"
    assert folder.rows("p.jsonl") == []
    assert folder.names() == ["in.jsonl", "p.jsonl"]


MANY = [*({"a": "x", "b": n} for n in range(1000)), *({"a": n, "b": n} for n in range(1000, 5000))]


@pytest.mark.parametrize(
    "options", [(), ("--resume",), pytest.param(("--runner=FnApiRunner",), marks=pytest.mark.large)], ids=str
)
def test_a_run_ends_once_its_first_thousand_rows_have_failed(folder, run, options):
    folder.write("in.jsonl", MANY)
    result = run("--handler-arg", "max_batch_size=100", *options)
    assert result.code == 3
    assert int(result.summary["rows"].replace(",", "")) < 3000
    assert result.error.startswith("the first 1,000 rows failed, and the rest was not read (--threshold 1 ")
    assert OLD.items() <= folder.contents().items()
    assert {letter["row"]["b"] for letter in folder.rows(FAILED)} == set(range(1000))
    again = run("--handler-arg", "max_batch_size=100", *options, "--threshold", "1")
    assert (again.code, again.summary["predictions"], again.summary["dead letters"]) == (0, "4,000", "1,000")


def test_rows_that_cannot_be_read_count_and_one_that_succeeds_is_enough(folder, run):
    folder.write("in.csv", "a,b\n" + "1,2,3\n" * 1500 + "1,2\n" * 10)
    result = run(inputs=["in.csv"])
    assert (result.code, result.summary["rows"]) == (3, "1,000")
    assert "No row could be read" in result.error
    assert "The model was given" not in result.error
    folder.write("in.jsonl", [{"a": "x", "b": 1}] * 998 + [{"a": 1, "b": 1}] + [{"a": "x", "b": 1}] * 100)
    assert run().code == 0
    assert len(folder.rows("p.dead-letters.jsonl")) == 1098
