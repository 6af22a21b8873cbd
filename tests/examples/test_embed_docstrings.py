"""The search finds docstrings by meaning, with the real model."""

import pytest

pytestmark = pytest.mark.large


def test_example_prints_the_docstrings_it_finds(example, capsys):
    example("embed_docstrings").main(
        ["how do I take the mean of numbers", "--package", "statistics", "--package", "csv", "--top", "3"]
    )

    searching, *hits = capsys.readouterr().out.splitlines()
    assert searching.startswith("searching ")
    assert len(hits) == 3
    assert "statistics.mean: Return the sample arithmetic mean of data." in hits[0]
