"""Compressed files are read whole, or not at all."""

import bz2
import gzip
import lzma

import pytest
import zstandard

from headrace.jobs import opening
from headrace.jobs.files import Source
from headrace.jobs.reading import read_rows

KINDS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
    "zst": zstandard.compress,
}
ROWS = [{"a": n, "b": n * 7919 % 1000} for n in range(2000)]
TEXT = "".join(["a,b\n", *(f"{row['a']},{row['b']}\n" for row in ROWS)]).encode()
MIDDLE = TEXT.index(b"\n", len(TEXT) // 2) + 1


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a compressed CSV file with such bytes, a few at a time."""
    for name, size in {"_COMPRESSED_BYTES": 1000, "_FIRST_BYTES": 3000, "_PIECE_BYTES": 3000}.items():
        monkeypatch.setattr(opening, name, size)

    def rows(extension, content):
        path = tmp_path / f"a.csv.{extension}"
        path.write_bytes(content)
        return list(read_rows(Source(str(path), "csv"), {"a": "int", "b": "int"}))

    return rows


@pytest.mark.parametrize("extension", KINDS)
def test_all_streams_are_read(read, extension):
    compress = KINDS[extension]
    assert read(extension, compress(TEXT)) == ROWS
    assert read(extension, compress(TEXT[:MIDDLE]) + compress(b"") + compress(TEXT[MIDDLE:])) == ROWS


@pytest.mark.parametrize("extension", KINDS)
def test_a_file_that_breaks_off_is_no_shorter_file(read, extension):
    first, second = (KINDS[extension](half) for half in (TEXT[:MIDDLE], TEXT[MIDDLE:]))
    for content in (first[: len(first) // 2], first[:-1], first + second[: len(second) // 2], first + second[:5]):
        with pytest.raises((EOFError, OSError), match=r"end|Truncated"):
            read(extension, content)


@pytest.mark.parametrize("behind", [b"40000,1\n", b"\n", b"BZh9 and so on", b"\xfd7zXZ\0 and so on"])
@pytest.mark.parametrize("extension", KINDS)
def test_what_is_behind_the_last_stream_is_an_error(read, extension, behind):
    with pytest.raises((OSError, EOFError, lzma.LZMAError)):
        read(extension, KINDS[extension](TEXT) + behind)
