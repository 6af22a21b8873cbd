"""Pages for people show texts; data for programs stays out of them."""

import pytest


@pytest.fixture
def report(benchmark_module):
    return benchmark_module("report")


def test_facts_are_shown_without_their_single_runs(report):
    facts = [{"batch": "1 MB", "ms": "0.1", "runs": [0.1, 0.1]}, {"batch": "16 MB", "ms": "1.6", "runs": [1.5, 1.7]}]

    assert report.page("Title", ["What it is.", report.table(facts)], {"cores": "2"}).splitlines() == [
        "# Title",
        "",
        "What it is.",
        "",
        "| batch | ms |",
        "| --- | --- |",
        "| 1 MB | 0.1 |",
        "| 16 MB | 1.6 |",
        "",
        "- cores: 2",
    ]
