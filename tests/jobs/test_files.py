"""Files are found, their beginnings looked at, and their rows read one by one, whatever is wrong with some of them."""

import gzip
import json
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from headrace.core.errors import ConfigurationError
from headrace.jobs.files import Source, absolute, dead_letters_path, match, output_format
from headrace.jobs.opening import TextLines
from headrace.jobs.reading import InputSchema, infer_schema, read_rows
from headrace.rows.blocks import BrokenLine


def rows_of(path, **options):
    sources = match([path], **options)
    types = infer_schema(sources).csv
    return [row for source in sources for row in read_rows(source, types)]


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
    assert match([name]) == (Source(absolute(name), file_format, delimiter, name=name),)


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
        ("b.csv", "there is no file 'b.csv'."),
        ("reviws.csv", "there is no file 'reviws.csv'; did you mean 'reviews.csv'?"),
        ("folders/a.csv", "there is no file 'folders/a.csv', nor a folder 'folders'."),
        ("b*.csv", "no file matches 'b*.csv'"),
        ("folder", "folder is a folder; name its files: 'folder/**/*.csv'."),
        ("deep", "deep is a folder; name its files: 'deep/**/*.parquet'."),
        ("empty", "name its files: 'empty/*.jsonl', for example; it has none of .jsonl, .csv or .parquet."),
        ("a.txt", "add --format"),
        ("a.parquet.gz", "is compressed, and Parquet has to be read from its end: decompress"),
        ("unheard-of://a.csv", "cannot look for unheard-of://a.csv: Beam has no filesystem for unheard-of://; it has "),
        ("https://web.org/a.csv", "files are not read from the web; download it first, for example with curl -O."),
    ],
)
def test_what_cannot_be_matched(write, pattern, message):
    write("a.txt", "")
    write("a.parquet.gz", "")
    write("reviews.csv", "")
    write("folder/a.csv", "")
    write("deep/er/a.parquet", "")
    write("empty/.keep", "")
    with pytest.raises(ConfigurationError) as caught:
        match([pattern])
    assert message in str(caught.value)


def test_jsonl_rows_and_the_lines_that_are_none(write):
    deep = {depth: "[" * depth + "]" * depth for depth in (199, 200, 900)}
    lines = {
        b"[1]": "a row must be a JSON object, not list",
        b'{"a": \r': "Expecting value",
        b'{"a": "\xff"}': "'utf-8' codec can't decode byte 0xff",
        f'{{"a": {deep[200]}}}'.encode(): "it has values within values, more than 200 deep",
        f'{{"a": {deep[900]}}}'.encode(): "it has values within values, more than 200 deep",
        b'{"a": 1, "a": 2}': "the object has 'a' twice",
        b'{"a": {"b": 1, "c": 2, "c": 3}}': "the object has 'c' twice",
    }
    rows = [{"a": 1}, {"a": json.loads(deep[199])}, {"a": [[]] * 500}]
    path = write(
        "a.jsonl", b"\n\n".join([*(json.dumps(row).encode() for row in rows), *lines, b'{"a": NaN, "b": [2]}'])
    )
    *good, last = (row for row in read_rows(Source(path, "jsonl"), {}) if not isinstance(row, BrokenLine))
    assert (good, last["b"]) == (rows, [2])
    wrong = [row for row in read_rows(Source(path, "jsonl"), {}) if isinstance(row, BrokenLine)]
    assert [row.number for row in wrong] == [7, 9, 11, 13, 15, 17, 19]
    assert [row.line for row in wrong] == [line.decode("utf-8", "backslashreplace") for line in lines]
    assert all(str(row.error).startswith(message) for row, message in zip(wrong, lines.values(), strict=True))
    assert wrong[0].row == {"line": "[1]", "file": path, "line_number": 7}


def test_a_line_in_many_pieces():
    """Each is copied once; were it for each piece that comes after it, this would take longer than a test may."""
    pieces = iter([b"\n", *[b"x" * 64] * 600_000, b"\ny"])
    lines = TextLines(SimpleNamespace(read=lambda _: next(pieces, b"")))
    assert list(map(len, lines.pieces())) == [1, 64 * 600_000 + 1, 2]


UNREADABLE = {
    "too few": "lone",
    "too many, in several lines": '"one\ntwo",2,"three\nfour"',
    "text behind a quote": '"a"b,2',
    "text behind a quote in several lines": '"one\ntwo" three,"4\n5",6',
    "a stray end of a line": "a\rb,2",
    "a stray end of a line in several lines": 'a\rb,"2\n3",4',
    "not UTF-8": "M\udcfcller,2",
    "not UTF-8 in several lines": '"one\nM\udcfcller",2',
}


@pytest.mark.parametrize("record", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("after", ["x,1\n", ""])
def test_csv_records_that_cannot_be_read_are_one_each(write, record, after):
    content = f'a,b\n"in two\nlines",7\n{record}\n{after}'.encode("utf-8", "surrogateescape")
    path = write("a.csv", content)
    good, wrong, *rest = read_rows(Source(path, "csv"), {"b": "int"})
    assert good == {"a": "in two\nlines", "b": 7}
    assert (wrong.line, wrong.number) == (record.replace("\udcfc", "\\xfc"), 4)
    assert rest == ([{"a": "x", "b": 1}] if after else [])


def test_a_quote_that_is_never_closed_takes_the_rest_of_the_file(write):
    path = write("a.csv", 'a,b\n1,2\n3,"4\n5,6\n')
    row, wrong = read_rows(Source(path, "csv"), {"a": "int", "b": "int"})
    assert row == {"a": 1, "b": 2}
    assert (wrong.line, wrong.number) == ('3,"4\n5,6', 3)
    assert "a quote is never closed" in str(wrong.error)


def test_a_quote_that_goes_on_for_ever_ends_the_file(write, monkeypatch):
    monkeypatch.setattr("headrace.jobs.csv_records._MOST_OF_A_QUOTE", 1 << 20)
    path = write("a.csv", 'a,b\n1,2\n3,"4\n' + "5,6\n" * (1 << 19))
    rows = read_rows(Source(path, "csv"), {})
    assert next(rows) == {"a": "1", "b": "2"}
    with pytest.raises(ValueError, match="the record that begins in line 3 goes on for more than 1 MiB"):
        list(rows)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r\r\n"])
def test_ends_of_csv_lines(write, ends, monkeypatch):
    monkeypatch.setattr("headrace.jobs.opening._FIRST_BYTES", 1000)
    monkeypatch.setattr("headrace.jobs.opening._PIECE_BYTES", 1000)
    path = write("a.csv", ends.join(["a,b", *(f'{n},"x{ends}y"' for n in range(900)), "", "40,z"]))
    rows = list(read_rows(Source(path, "csv"), {"a": "int"}))
    assert rows == [*({"a": n, "b": f"x{ends}y"} for n in range(900)), {"a": 40, "b": "z"}]


def test_a_byte_order_mark_is_one_only_at_the_start(write):
    mark = "\ufeff"
    path = write("a.csv", f"{mark}a\n{mark}\n{mark}b\n")
    assert list(read_rows(Source(path, "csv"), {})) == [{"a": mark}, {"a": f"{mark}b"}]
    path = write("b.jsonl", f'{mark}{{"a": "{mark}"}}\n{mark}{{"a": 1}}\n')
    row, wrong = read_rows(Source(path, "jsonl"), {})
    assert row == {"a": mark}
    assert (wrong.line, wrong.number) == (f'{mark}{{"a": 1}}', 2)


def test_parquet_rows_over_several_row_groups(tmp_path):
    expected = [{"n": n, "name": f"row {n}", "list": [n, None]} for n in range(5000)]
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(expected), path, row_group_size=700)
    assert rows_of(path) == expected
    types = {"n": "int", "name": "str", "list": "list<element: int64>"}
    assert infer_schema(match([path])) == InputSchema(tuple(types), {}, types)


def test_the_first_file_with_rows_tells_the_columns(write):
    write("a.jsonl", "")
    write("b.csv", "")
    write("c.csv", "x,y\n")
    write("d.csv", "y,x\n1,z\n")
    found = infer_schema(match(["a.jsonl", "b.csv", "c.csv", "d.csv"]))
    assert found == InputSchema(("x", "y"), {"y": "int", "x": "str"}, {})
    assert infer_schema(match(["a.jsonl", "b.csv"])) == InputSchema((), {}, {})
    assert rows_of("b.csv") == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '\n{"a"\n{"a": 1}\n', "line 2: Expecting ':' delimiter"),
        ("a.jsonl", '"a"\n', "line 1: a row must be a JSON object, not str"),
        ("a.csv", "a,b,a\n", "the header has 'a' twice"),
        ("a.csv", b"a,M\xfcller\n1,2\n", "the header cannot be read: 'utf-8' codec"),
        ("a.tsv", b"\xe9\n", "convert it: iconv -f latin1 -t utf-8"),
        ("a.csv", "a,b\r1,2\r", "its lines end in \\r alone; convert it: tr"),
        ("a.jsonl", b'\n{"a": "\xe9"}\n', "line 2: 'utf-8' codec can't decode byte 0xe9 in position 7: invalid"),
        ("a.csv", 'a,"b\n1,2\n', "the header cannot be read: a quote is never closed"),
        ("a.csv", gzip.compress(b"a\n1\n", mtime=0), "it is compressed (gzip); give it the extension .gz"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), "it is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16-be"), "it is UTF-16, not UTF-8"),
        ("a.jsonl", b"PAR1\x15\x04", "it is a Parquet file; add --format parquet"),
        ("a.json", '\n [{"a": 1}]', "it is one JSON array, not an object on each line; convert it: "),
        ("a.json", '{\n  "a": 1\n}\n', "its JSON objects take several lines each, not one; convert it: jq -c ."),
        ("a.parquet", "a,b\n", "as parquet"),
        ("a.csv.gz", "a,b\n", "as csv"),
    ],
)
def test_a_beginning_that_cannot_be_read(write, name, content, message):
    write(name, content)
    with pytest.raises(ConfigurationError) as caught:
        infer_schema(match([name]))
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


@pytest.mark.parametrize("output", ["out", "out.xlsx", "out.txt", "out.parquet.gz", "jsonl"])
def test_outputs_of_no_known_format(output):
    with pytest.raises(ConfigurationError, match=r"must end in \.jsonl"):
        output_format(output)


@pytest.mark.parametrize(
    ("name", "option", "hint"),
    [
        ("out", "--output", "; or end it in a slash for a file for each input."),
        ("out/", "--output", "."),
        ("out", "--dead-letters", "."),
    ],
)
def test_a_folder_is_no_file(tmp_path, monkeypatch, name, option, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        output_format(name, option)
    assert str(caught.value).endswith(f"is a folder; name a file in it, such as out/predictions.jsonl{hint}")
