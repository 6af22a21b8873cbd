"""Files as rows: contents are read ahead, but never far, and are no part of the row."""

import json
import pickle
import threading
from operator import itemgetter

import pytest

from headrace.rows.files import Contents, FileRow, is_of_file, record_of_file, row_of_file


@pytest.fixture
def rows(tmp_path):
    """The rows of files with these contents."""

    def of(*contents):
        for number, content in enumerate(contents):
            (tmp_path / f"{number}").write_bytes(content)
        return [row_of_file(str(tmp_path / f"{number}"), len(one), 1.5) for number, one in enumerate(contents)]

    return of


def test_a_row_has_the_path_the_size_and_the_time():
    row = row_of_file("/x", 3, 1.5)
    assert (row["path"], row["size"], row["modified"].isoformat()) == ("/x", 3, "1970-01-01T00:00:01.500000+00:00")
    assert row_of_file("s3://x", 3, 0.0)["modified"] is None


def test_the_content_is_no_item_of_the_row(rows):
    (row,) = rows(b"abc")
    file = FileRow(row)
    assert (file["content"], file.get("content")) == (b"abc", b"abc")
    assert dict(file) == row == {**file}
    assert "abc" not in repr(file)
    assert json.loads(json.dumps(file, default=str)).keys() == row.keys()
    with pytest.raises(KeyError, match="contents"):
        file["contents"]


@pytest.mark.parametrize("ahead", [True, False])
def test_contents_come_in_order_decoded_and_with_what_goes_along(rows, ahead):
    given = rows(*(b"%d" % number for number in range(200)))
    found = [(int(row["content"]), its) for row, its in Contents(bytes.decode, ahead).of(zip(given, range(200)))]
    assert found == [(number, number) for number in range(200)]


def test_a_file_that_cannot_be_read_fails_alone_and_where_it_is_asked_for(rows, tmp_path):
    given = [*rows(b"1", b"2", b"x", b"4"), "a broken line, which goes through"]
    (tmp_path / "1").unlink()
    *found, line = (row for row, _ in Contents(int).of((row, None) for row in given))
    assert [found[0]["content"], found[3]["content"], line] == [1, 4, given[4]]
    for place, error in ((1, FileNotFoundError), (2, ValueError)):
        with pytest.raises(error):
            found[place]["content"]


@pytest.mark.parametrize(("size", "most"), [(1, 64), (1 << 25, 2), (1 << 28, 1)])
def test_at_most_64_files_or_64_mebibytes_are_read_ahead(tmp_path, size, most):
    path = tmp_path / "x"
    path.write_bytes(b"")
    begun = []
    rows = (begun.append(number) or (row_of_file(str(path), size, 1.0), None) for number in range(300))
    for number, _ in enumerate(Contents().of(rows)):
        assert len(begun) - number - 1 <= most
    assert len(begun) == 300


def test_what_is_handed_out_is_held_no_longer(rows):
    ((row, _),) = Contents(bytearray).of([(rows(b"abc")[0], None)])
    first = row["content"]
    assert row["content"] == first
    assert row["content"] is not first


def test_rows_that_are_kept_may_be_read_behind_the_end(rows):
    may_read = threading.Event()

    def waits(content):
        may_read.wait(60)
        return content

    contents = [b"%d" % number for number in range(30)]
    ahead = list(Contents(waits).of((row, None) for row in rows(*contents)))
    may_read.set()
    assert [row["content"] for row, _ in ahead] == contents


def test_ending_early_ends_the_threads(rows, wait_until):
    coming = Contents().of((row, None) for row in rows(*[b"x"] * 200))
    next(coming)
    coming.close()
    assert wait_until(lambda: "headrace-reads-files" not in str(threading.enumerate()))  # those of others, too


def test_other_processes_read_the_file_themselves(rows):
    ((row, _),) = Contents(str).of([(rows(b"abc")[0], None)])
    copy = pickle.loads(pickle.dumps(row))
    assert copy == row
    assert copy["content"] == row["content"] == "b'abc'"


def test_the_record_of_a_file_says_that_it_is_one():
    assert is_of_file(record_of_file("/x", 1, 1.0).position)
    assert not any(map(is_of_file, [None, {}, {"file": "/x", "row": 1}]))
    assert itemgetter("path")(record_of_file("/x", 1, 1.0)) == "/x"
