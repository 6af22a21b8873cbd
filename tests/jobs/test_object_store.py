"""Inputs and outputs may be on any of Beam's filesystems; here one like an object store, without folders."""

import gzip
import io
import json
import posixpath

import pytest
from apache_beam.io.filesystem import BeamIOError, CompressedFile, CompressionTypes, FileMetadata, FileSystem

from headrace.core.handler import ModelHandler
from headrace.jobs.files import match, read_files
from headrace.jobs.job import Job
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples

OBJECTS: dict[str, bytes] = {}


class ObjectFile(io.BytesIO):
    """An object that is there once it is closed."""

    mode = "wb"

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        if not self.closed:
            OBJECTS[self.path] = self.getvalue()
        super().close()


class ObjectStore(FileSystem):
    """Objects by their whole names, in this process's memory."""

    @classmethod
    def scheme(cls):
        return "objects"

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        return posixpath.split(path)

    def mkdirs(self, path):
        """There are no folders."""

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        return [FileMetadata(path, len(data)) for path, data in OBJECTS.items() if path.startswith(dir_or_prefix)]

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        return self._compressed(ObjectFile(path), path, compression_type)

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        if path not in OBJECTS:
            raise BeamIOError(f"no object {path}")
        return self._compressed(io.BytesIO(OBJECTS[path]), path, compression_type)

    def _compressed(self, file, path, compression):
        compression = self._get_compression_type(path, compression)
        if compression == CompressionTypes.UNCOMPRESSED:
            return file
        return CompressedFile(file, compression_type=compression)

    def rename(self, source_file_names, destination_file_names):
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            if destination in OBJECTS:
                raise BeamIOError(f"{destination} is there already")
            OBJECTS[destination] = OBJECTS.pop(source)

    def exists(self, path):
        return path in OBJECTS

    def delete(self, paths):
        for path in paths:
            del OBJECTS[path]

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    size = last_updated = checksum = metadata = copy


class Double(ModelHandler):
    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        return [number * model for number in batch]


class Broken(Double):
    def load_model(self):
        raise OSError("no such weights")


@pytest.fixture
def objects():
    OBJECTS.clear()
    OBJECTS["objects://in/a.jsonl"] = b'{"n": 1}\n{"n": null}\n'
    OBJECTS["objects://in/b.csv.gz"] = gzip.compress(b"n\n2\n")
    OBJECTS["objects://out/p.jsonl"] = b"old"
    return OBJECTS


def run(handler, output):
    sources = match(["objects://in/*"])
    head = infer_schema(sources)
    return Run(Job(handler, sources, output, Examples(("n",), head.columns), head.csv)).execute()


@pytest.mark.parametrize("output", ["objects://out/p.jsonl", "objects://out/p.jsonl.gz", "objects://out/p.parquet"])
def test_from_objects_to_objects(objects, output):
    inputs = set(objects)
    assert run(Double(), output).rows == 3
    assert set(objects) == inputs | {output, "objects://out/p.dead-letters.jsonl"}
    assert json.loads(objects["objects://out/p.dead-letters.jsonl"])["row"] == {"n": None}
    if output.endswith(".jsonl"):
        assert objects[output] == b'{"n": 1, "prediction": 2}\n{"n": 2, "prediction": 4}\n'


def test_a_failure_leaves_the_objects_as_they_were(objects):
    before = dict(objects)
    with pytest.raises(OSError, match="no such weights"):
        run(Broken(), "objects://out/p.jsonl")
    assert objects == before


def test_parts_of_a_run_that_failed_late_are_removed(objects):
    objects["objects://in/c.csv"] = b"n,n\n1,1\n"
    before = dict(objects)
    with pytest.raises(OSError, match="the header has 'n' twice"):
        run(Double(), "objects://out/p.jsonl")
    assert objects == before


def test_objects_are_rows(objects):
    objects["objects://in/deep/er/c.bin"] = b"333"
    found = [(row["path"], row["size"], row["content"][:3]) for row in read_files("objects://in/**/*", content=True)]
    assert found == [
        ("objects://in/a.jsonl", 21, b'{"n'),
        ("objects://in/b.csv.gz", len(objects["objects://in/b.csv.gz"]), objects["objects://in/b.csv.gz"][:3]),
        ("objects://in/deep/er/c.bin", 3, b"333"),
    ]
    assert [row["modified"] for row in read_files("objects://in/**/c.*")] == [None]
