"""The search finds docstrings by meaning, with the real model."""

import pytest
from apache_beam.testing.util import assert_that

pytestmark = pytest.mark.large

CORPUS = [
    ("csv", "reader: Return an iterator over lines of a comma-separated file."),
    ("zipfile", "ZipFile: Open an archive with compressed members."),
    ("statistics", "mean: Return the sample arithmetic mean of data."),
]


def test_the_nearest_docstring_comes_first(example, new_pipeline):
    search = example("embed_docstrings")
    handler = search.embedder()
    question = search.embed(handler, "what is the average of these numbers")

    def check(found):
        (hits,) = found
        assert hits[0].where == "statistics"
        assert hits[0].score > 0.3 > hits[1].score
        assert len(hits) == 2

    with new_pipeline() as pipeline:
        assert_that(search.build(pipeline, handler, CORPUS, question, top=2), check)


def test_example_prints_the_docstrings_it_finds(example, capsys):
    example("embed_docstrings").main(
        ["how do I take the mean of numbers", "--package", "statistics", "--package", "csv", "--top", "3"]
    )

    searching, *hits = capsys.readouterr().out.splitlines()
    assert searching.startswith("searching ")
    assert len(hits) == 3
    assert "statistics.mean: Return the sample arithmetic mean of data." in hits[0]
