"""Parts of files: together they are the file, whatever is in it and however it is cut."""

import random
from itertools import chain

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs import splits
from headrace.jobs.csv_records import NESTED
from headrace.jobs.files import match
from headrace.jobs.reading import RowRanges, read_blocks
from headrace.jobs.splits import Splits
from headrace.rows.blocks import BrokenLine

FIELDS = ["1", "abc", "", '"x"', '"a,b"', '"l1\nl2"', '"q""q"', "é", '"a\r\nb"', '"\n"', '""', " "]
ODD_FIELDS = ['5" pipe', '"open', 'x"y', '"a"b', "\0", "a\rb"]
JSON_LINES = ['{"a": 1}', '{"a": "é"}', '{"a": 1, "b": null}', "broken", "", "  ", "\t", "[1]", '{"a": 1} ']


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(splits, "_FEWEST_BYTES", 40)
    monkeypatch.setattr(splits, "_SLOW_BYTES", 64)
    monkeypatch.setattr(splits, "_PIECE_BYTES", 200)


def rows_of(source, done=RowRanges(), types=None):
    """Each row with its number; broken ones with all that their dead letters say of them, but for their neighbours."""
    for block in read_blocks(source, 0, types or {}, done):
        for number, (row, place) in enumerate(block.each(), block.first):
            assert place.place == number
            yield number, (row.line, row.number, str(row.error)) if isinstance(row, BrokenLine) else row


def outcome(sources):
    """The rows of all of them, or what is wrong with a file."""
    try:
        return [row for source in sources for row in rows_of(source)]
    except (OSError, ValueError) as error:
        return str(error)


def check(path, content, workers):
    path.write_bytes(content)
    (source,) = match([str(path)])
    expected = outcome([source])
    found = outcome(part for _, part in Splits([source], workers))
    if isinstance(expected, str):
        assert isinstance(found, str)
        return []
    assert found == expected
    return [part for _, part in Splits([source], workers)]


@given(st.integers(), st.sampled_from([1, 2, 5]))
def test_parts_of_csv_are_the_file(tmp_path_factory, seed, workers):
    chance = random.Random(seed)
    fields = FIELDS + chance.choice([[], ODD_FIELDS])
    lines = [
        ",".join(chance.choices(fields, k=chance.choice([3] * 9 + [1, 2, 4]))) for _ in range(chance.randrange(50))
    ]
    for blank in ("", "", "\r", "  ")[: chance.randrange(5)]:
        lines.insert(chance.randrange(len(lines) + 1), blank)
    end = chance.choice(["\n", "\r\n"])
    header = chance.choice(["a,b,c", '"a","b\nb",c', "\na,b,c"])
    text = chance.choice(["", "\ufeff"]) + header + end + end.join(lines) + chance.choice(["", end, end + end])
    content = text.encode().replace("é".encode(), chance.choice([b"\xe9", "é".encode()]))
    check(tmp_path_factory.mktemp("csv") / "a.csv", content, workers)


@given(st.integers(), st.sampled_from([1, 2, 5]))
def test_parts_of_json_lines_are_the_file(tmp_path_factory, seed, workers):
    chance = random.Random(seed)
    end = chance.choice(["\n", "\r\n"])
    text = end.join(chance.choices(JSON_LINES, k=chance.randrange(50))) + chance.choice(["", end, end + end])
    content = (chance.choice(["", "\ufeff"]) + text).encode()
    check(tmp_path_factory.mktemp("json") / "a.jsonl", content, workers)


@given(st.integers(0, 900), st.sampled_from([10, 50, 300, 5000]), st.integers(), st.sampled_from([1, 2, 5]))
def test_parts_of_parquet_are_the_file_without_what_is_done(tmp_path_factory, rows, group, seed, workers):
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": range(rows)}), path, row_group_size=group)
    chance = random.Random(seed)
    starts = [chance.randrange(rows + 1) for _ in range(chance.randrange(4))]
    done = RowRanges(starts, [start + chance.randrange(1, 500) for start in starts])
    (source,) = match([str(path)])
    parts = [part for _, part in Splits([source], workers)]
    assert list(chain.from_iterable(rows_of(part, done) for part in parts)) == list(rows_of(source, done))
    assert sum(part.part.rows for part in parts if part.part) == rows


def test_parts_become_smaller_towards_the_end(tmp_path):
    parts = check(tmp_path / "a.jsonl", b'{"a": 1}\n' * 2000, 2)
    sizes = [part.part.stop - part.part.start for part in parts]
    assert 2000 < sizes[0] < 3000
    assert sizes[-1] < 100
    assert [part.part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_quotes_within_fields_leave_most_to_the_fast_way(tmp_path, monkeypatch):
    slow = []
    scan = splits._Scan._take_slowly
    monkeypatch.setattr(splits._Scan, "_take_slowly", lambda self, size: slow.append(size) or scan(self, size))
    parts = check(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * 500 + b'3,5" pipe\n' + b"1,2\n" * 500, 2)
    assert len(parts) > 4
    assert 0 < sum(slow) < 200


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt"])
def test_what_cannot_be_cut_stays_whole(tmp_path, name):
    import gzip

    path = tmp_path / name
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 900) if name.endswith("gz") else b"a%b\n1%2\n" * 900)
    sources = match([str(path)], None if name.endswith("gz") else "csv", "%")
    assert list(Splits(sources, 2)) == [(0, sources[0])]
    assert Splits(sources, 2).at(5) is None


def test_a_file_that_changes_during_the_run_is_an_error(tmp_path):
    parts = check(tmp_path / "a.jsonl", b'{"a": 1}\n' * 100, 1)
    (tmp_path / "a.jsonl").write_bytes(b'{"a":\n1}\n' * 100)
    assert "the file has changed during the run" in outcome(parts)


def test_the_share_that_is_done_grows_with_the_rows_and_those_of_earlier_runs(tmp_path):
    for name, rows in (("a.jsonl", 100), ("b.jsonl", 300)):
        (tmp_path / name).write_bytes(b'{"a": 1}\n' * rows)
    found = Splits(match([str(tmp_path / "*.jsonl")]), 2)
    assert found.at(0) is None
    cut = iter(found)
    next(cut)
    assert found.at(100) == pytest.approx(0.25, abs=0.01)  # as if all were like what is known
    assert [index for index, _ in cut][-1] == 1
    assert found.at(100) == pytest.approx(0.25)
    found.earlier_rows = 100
    assert found.at(100) == pytest.approx(0.5)
    assert found.at(300) == 0.999


def test_parts_with_columns_of_json_are_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("n,list\n" + "".join(f'{n},"[{n}, 1]"\n\n' for n in range(200)))
    (source,) = match([str(tmp_path / "a.csv")])
    types = {"list": NESTED}
    parts = [part for _, part in Splits([source], 2)]
    assert len(parts) > 9
    found = [row for part in parts for row in rows_of(part, types=types)]
    assert found == list(rows_of(source, types=types))
    assert found[7] == (7, {"n": "7", "list": [7, 1]})


def test_parts_of_files_as_rows_are_all_of_them(tmp_path):
    for number in range(40):
        (tmp_path / f"{number:02}.bin").write_bytes(b"x" * number)
    sources = match([str(tmp_path / "*.bin")], "files")
    parts = [part for _, part in Splits(sources, 2)]
    assert len(parts) > 4
    assert [row for part in parts for row in rows_of(part)] == [row for source in sources for row in rows_of(source)]
