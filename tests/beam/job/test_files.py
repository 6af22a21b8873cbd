"""Files are found, their beginnings looked at, and their rows read one by one, whatever is wrong with some of them."""

import bz2
import gzip
import json
import lzma
import zlib

import pyarrow
import pyarrow.parquet
import pytest

from headrace.beam.job.files import (
    BrokenLine,
    Head,
    Source,
    absolute,
    dead_letters_path,
    match,
    output_format,
    peek,
    read_rows,
)
from headrace.core.errors import ConfigurationError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into the current folder."""
    monkeypatch.chdir(tmp_path)

    def to(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return to


def rows_of(path, **options):
    sources = match([path], **options)
    numbers = peek(sources).numbers
    return [row for source in sources for row in read_rows(source, numbers)]


def broken(rows):
    return [(row.line, row.number, str(row.error)) for row in rows if isinstance(row, BrokenLine)]


def test_a_glob_is_sorted_and_a_file_comes_once(write):
    for name in ("data/b.jsonl", "data/a.jsonl", "data/deeper/c.jsonl", "data/d.csv"):
        write(name, "")
    found = match(["data/b.jsonl", "data/*.jsonl", "**.csv"])
    assert [source.path.rpartition("/data/")[2] for source in found] == ["b.jsonl", "a.jsonl", "d.csv"]
    assert [source.format for source in found] == ["jsonl", "jsonl", "csv"]


@pytest.mark.parametrize(
    ("name", "file_format", "delimiter"),
    [
        ("a.ndjson", "jsonl", ","),
        ("a.JSONL.gz", "jsonl", ","),
        ("a.csv.bz2", "csv", ","),
        ("a.tsv", "csv", "\t"),
        ("a.pq", "parquet", ","),
    ],
)
def test_extensions_tell_the_format(write, name, file_format, delimiter):
    write(name, "")
    assert match([name]) == (Source(absolute(name), file_format, delimiter),)


def test_the_format_and_the_delimiter_can_be_said(write):
    path = write("a.txt", "x;y\n1;2\n")
    assert rows_of("a.txt", file_format="csv", delimiter=";") == [{"x": 1, "y": 2}]
    assert rows_of(f"file://{path}", file_format="csv") == [{"x;y": "1;2"}]


def test_a_file_whose_name_looks_like_a_glob(write):
    path = write("a[1]*.jsonl", '{"a": 1}\n')
    assert [source.path for source in match(["a[1]*.jsonl"])] == [path]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("b.csv", "there is no file 'b.csv'"),
        ("b*.csv", "no file matches 'b*.csv'"),
        ("folder", "folder is a folder; name its files, for example 'folder/*.jsonl'"),
        ("a.txt", "add --format"),
        ("unheard-of://a.csv", "cannot look for unheard-of://a.csv"),
    ],
)
def test_what_cannot_be_matched(write, pattern, message):
    write("a.txt", "")
    write("folder/a.csv", "")
    with pytest.raises(ConfigurationError) as caught:
        match([pattern])
    assert message in str(caught.value)


def test_jsonl_rows_and_the_lines_that_are_none(write):
    write("a.jsonl", b'{"a": 1}\n\n[1]\n{"a": \r\n{"a": "\xff"}\n  \n{"a": NaN, "b": [2]}')
    rows = rows_of("a.jsonl")
    assert rows[0] == {"a": 1}
    assert rows[-1]["b"] == [2]
    assert len(rows) == 5
    lines = broken(rows)
    assert [(line, number) for line, number, _ in lines] == [("[1]", 3), ('{"a": \r', 4), ('{"a": "\\xff"}', 5)]
    assert lines[0][2] == "a row must be a JSON object, not list"
    assert rows[1].row == {"line": "[1]", "file": absolute("a.jsonl"), "line_number": 3}


def test_lines_longer_than_a_chunk(write):
    text = "x" * 3_000_000
    write("a.jsonl", "".join(json.dumps({"n": n, "text": text}) + "\n" for n in range(3)))
    assert [(row["n"], len(row["text"])) for row in rows_of("a.jsonl")] == [(n, len(text)) for n in range(3)]


@pytest.mark.parametrize(
    ("extension", "compress"),
    [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("deflate", zlib.compress)],
)
def test_compressed_files(write, extension, compress):
    write(f"a.csv.{extension}", compress(b"a,b\n" + b"1,x\n" * 1000))
    assert rows_of(f"a.csv.{extension}") == [{"a": 1, "b": "x"}] * 1000


@pytest.mark.parametrize(("extension", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_that_breaks_off_is_no_shorter_file(write, extension, compress):
    whole = compress("".join(f"{n}\n" for n in range(300_000)).encode())
    path = write(f"a.csv.{extension}", whole[: len(whole) // 2])
    with pytest.raises(EOFError):
        list(read_rows(Source(path, "csv"), {}))


def test_csv_fields_with_quotes_line_ends_and_a_byte_order_mark(write):
    write("a.csv", '\ufeffname,text\r\nx,"one\r\ntwo, ""three"""\r\n\r\ny,\u2028z\r\n')
    assert rows_of("a.csv") == [{"name": "x", "text": 'one\r\ntwo, "three"'}, {"name": "y", "text": "\u2028z"}]


def test_csv_lines_with_too_few_or_too_many_fields(write):
    write("a.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n")
    rows = rows_of("a.csv")
    assert [row for row in rows if isinstance(row, dict)] == [{"a": 1, "b": 2}, {"a": 7, "b": 8}]
    assert broken(rows) == [
        ("3", 3, "the line has 1 fields, the header 2"),
        ("4,5,6", 4, "the line has 3 fields, the header 2"),
    ]


def test_a_csv_field_beyond_pythons_limit_spoils_its_record_only(write):
    write("a.csv", "a,b\n1,2\n" + "x" * 200_000 + ",3\n4,5\n")
    rows = rows_of("a.csv")
    assert [row for row in rows if isinstance(row, dict)] == [{"a": 1, "b": 2}, {"a": 4, "b": 5}]
    assert "field larger than field limit" in broken(rows)[0][2]


def test_bytes_that_are_not_utf8_spoil_their_field_only(write):
    write("a.csv", b"a,b\nM\xfcller,1\n")
    assert rows_of("a.csv") == [{"a": "M\\xfcller", "b": 1}]


def test_columns_of_numbers(write):
    lines = ["int,float,code,text,mixed,empty,id"]
    lines += ["1,1.5,01,a,7,,2024_01", "2,2,12,3,8,,1", "-3,1e3,13,b,x,,2"]
    write("a.csv", "\n".join(lines))
    assert peek(match(["a.csv"])).numbers == {"int": int, "float": float, "mixed": int, "id": int}
    first, second, third = rows_of("a.csv")
    assert list(first.values()) == [1, 1.5, "01", "a", 7, "", "2024_01"]
    assert [type(value) for value in second.values()] == [int, float, str, str, int, str, int]
    assert list(third.values()) == [-3, 1000.0, "13", "b", "x", "", 2]


def test_fields_of_numbers_that_are_none(write):
    path = write("a.csv", "n,x\n,\n3.5, 7\nnan,1_0\nsmudge,8\n")
    rows = list(read_rows(Source(path, "csv"), {"n": int, "x": float}))
    assert [rows[i]["n"] for i in (0, 1, 3)] == [None, 3.5, "smudge"]
    assert rows[2]["n"] != rows[2]["n"]
    assert [row["x"] for row in rows] == [None, 7.0, "1_0", 8.0]
    assert type(rows[1]["x"]) is type(rows[3]["x"]) is float


def test_parquet_rows_over_several_row_groups(write, tmp_path):
    expected = [{"n": n, "name": f"row {n}", "list": [n, None]} for n in range(5000)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(expected), tmp_path / "a.parquet", row_group_size=700)
    write("marker", "")
    assert rows_of("a.parquet") == expected
    assert peek(match(["a.parquet"])) == Head(("n", "name", "list"), {})


def test_the_first_file_with_rows_tells_the_columns(write):
    write("a.jsonl", "")
    write("b.csv", "")
    write("c.csv", "x,y\n")
    write("d.csv", "y,x\n1,z\n")
    assert peek(match(["a.jsonl", "b.csv", "c.csv", "d.csv"])) == Head(("x", "y"), {"y": int})
    assert peek(match(["a.jsonl", "b.csv"])) == Head((), {})
    assert rows_of("b.csv") == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '\n{"a"\n{"a": 1}\n', "line 2: Expecting ':' delimiter"),
        ("a.jsonl", '["a"]\n', "line 1: a row must be a JSON object, not list"),
        ("a.csv", "a,b,a\n", "the header has 'a' twice"),
        ("a.parquet", "a,b\n", "as parquet"),
        ("a.csv.gz", "a,b\n", "as csv"),
    ],
)
def test_a_beginning_that_cannot_be_read(write, name, content, message):
    write(name, content)
    with pytest.raises(ConfigurationError) as caught:
        peek(match([name]))
    assert absolute(name) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("output", "file_format", "dead_letters"),
    [
        ("/x/out.jsonl", "jsonl", "/x/out.dead-letters.jsonl"),
        ("/x/out.v2.JSONL.gz", "jsonl", "/x/out.v2.dead-letters.jsonl"),
        ("/x/out.parquet", "parquet", "/x/out.dead-letters.jsonl"),
    ],
)
def test_output_paths(output, file_format, dead_letters):
    assert output_format(output) == file_format
    assert dead_letters_path(output) == dead_letters


@pytest.mark.parametrize("output", ["out", "out.csv", "out.txt", "out.parquet.gz", "jsonl"])
def test_outputs_of_no_known_format(output):
    with pytest.raises(ConfigurationError, match=r"must end in \.jsonl"):
        output_format(output)
