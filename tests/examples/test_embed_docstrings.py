"""The search finds docstrings by meaning, with the real model."""

import pytest

pytestmark = pytest.mark.large

CORPUS = [
    ("csv", "reader: Return an iterator over lines of a comma-separated file."),
    ("zipfile", "ZipFile: Open an archive with compressed members."),
    ("statistics", "mean: Return the sample arithmetic mean of data."),
]


def test_the_nearest_docstring_comes_first(example, new_pipeline, tmp_path):
    docstrings = example("embed_docstrings")
    handler, store = docstrings.embedder(), str(tmp_path)
    for _ in range(2):
        with new_pipeline() as pipeline:
            docstrings.build(pipeline, handler, CORPUS, store)
    hits = docstrings.search(handler, store, "what is the average of these numbers", top=5)
    assert len(hits) == len(CORPUS)
    assert hits[0]["where"] == "statistics"
    assert hits[0]["_distance"] < 0.7 < hits[1]["_distance"]


def test_example_prints_the_docstrings_it_finds(example, capsys):
    example("embed_docstrings").main(
        ["how do I take the mean of numbers", "--package", "statistics", "--package", "csv", "--top", "3"]
    )

    searching, *hits = capsys.readouterr().out.splitlines()
    assert searching.startswith("searching ")
    assert len(hits) == 3
    assert "statistics.mean: Return the sample arithmetic mean of data." in hits[0]
