"""The comparison of two trees reads figures from the cells of a page and shows their medians side by side."""

import pytest


@pytest.fixture
def against(benchmark_module):
    return benchmark_module("against")


@pytest.mark.parametrize(
    ("cell", "number"),
    [("39.305 (26.2 to 40.2)", 39.305), ("76.2x", 76.2), ("2,000", 2000), ("1e5 rows", None), ("by hand", None)],
)
def test_number_of_a_cell(against, cell, number):
    assert against._number(cell) == number


def test_page_has_medians_and_their_ratio(against):
    figures = {("tiny", "adaptive", "Headrace, s"): {"before": [1.0, 9.0, 2.0], "now": [3.0, 1.0, 0.5]}}
    assert "| tiny | adaptive | Headrace, s | 2 | 1 | 0.500 |" in against._page("abc", figures, {"cores": "2"})
