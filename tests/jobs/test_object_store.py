"""Inputs and outputs may be on any of Beam's filesystems; here one like an object store, without folders."""

import gzip
import io
import json

import pytest

from headrace.jobs.files import match, read_files
from headrace.jobs.job import Job
from headrace.jobs.output import Output
from headrace.jobs.parts import PartWriter
from headrace.jobs.publishing import PublishError
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run
from headrace.rows.examples import Examples
from object_store import OBJECTS, ObjectStore
from output_rows import write_rows
from toys import Acting, each


@pytest.fixture
def objects():
    OBJECTS.clear()
    OBJECTS["objects://in/a.jsonl"] = b'{"n": 1}\n{"n": null}\n'
    OBJECTS["objects://in/b.csv.gz"] = gzip.compress(b"n\n2\n")
    OBJECTS["objects://out/p.jsonl"] = b"old"
    return OBJECTS


def run(output, **model):
    sources = match(["objects://in/*"])
    head = infer_schema(sources)
    handler = Acting(each(lambda number: number * 2), **model)
    return Run(Job(handler, sources, output, Examples(("n",), head.columns), head.csv)).execute()


@pytest.mark.parametrize("output", ["objects://out/p.jsonl", "objects://out/p.jsonl.gz", "objects://out/p.parquet"])
def test_from_objects_to_objects(objects, output):
    inputs = set(objects)
    assert run(output).rows == 3
    assert set(objects) == inputs | {output, "objects://out/p.dead-letters.jsonl"}
    assert json.loads(objects["objects://out/p.dead-letters.jsonl"])["row"] == {"n": None}
    if output.endswith(".jsonl"):
        assert objects[output] == b'{"n": 1, "prediction": 2}\n{"n": 2, "prediction": 4}\n'


def test_a_run_that_fails_early_or_late_leaves_the_objects_as_they_were(objects):
    def load():
        raise OSError("no such weights")

    before = dict(objects)
    with pytest.raises(OSError, match="no such weights"):
        run("objects://out/p.jsonl", load=load)
    assert objects == before
    before["objects://in/c.csv"] = objects["objects://in/c.csv"] = b"n,n\n1,1\n"
    with pytest.raises(OSError, match="the header has 'n' twice"):
        run("objects://out/p.jsonl")
    assert objects == before


class Unreliable(io.BytesIO):
    """Fails once."""

    has_failed = False

    def read(self, size=-1):
        if self.tell() > 300 and not self.has_failed:
            self.has_failed = True
            raise OSError("connection lost")
        return super().read(size)


def test_parts_that_cannot_be_read_are_not_passed_over(objects, monkeypatch):
    output = Output("objects://out/p.jsonl")
    output.prepare()
    part = PartWriter(output.folder, "predictions")
    write_rows(part, [(0, {"n": "x" * 1000})])
    part.finish()
    monkeypatch.setattr(ObjectStore, "open", lambda self, path, *_: Unreliable(objects[path]))
    with pytest.raises(PublishError, match="connection lost"):
        output.publish()
    assert objects["objects://out/p.jsonl"] == b"old"


def test_objects_are_rows(objects):
    objects["objects://in/deep/er/c.bin"] = b"333"
    found = [(row["path"], row["size"], row["content"][:3]) for row in read_files("objects://in/**/*", content=True)]
    assert found == [
        ("objects://in/a.jsonl", 21, b'{"n'),
        ("objects://in/b.csv.gz", len(objects["objects://in/b.csv.gz"]), objects["objects://in/b.csv.gz"][:3]),
        ("objects://in/deep/er/c.bin", 3, b"333"),
    ]
    assert [row["modified"] for row in read_files("objects://in/**/c.*")] == [None]
