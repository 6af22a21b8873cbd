"""The page of a pipeline says what its metrics tell, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import headrace.beam
from headrace import Budget, Price
from headrace.beam import RunInference
from metered import Metered

pytest.importorskip("matplotlib")


def test_all_transforms_of_a_pipeline_are_counted_together(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(FnApiRunner())
    prices = Budget(prices={"m": Price(input=1.0, output=2.0, request=0.5)})
    rows = pipeline | beam.Create([1, 2, 3])
    _ = rows | "One" >> RunInference(Metered(), budget=prices)
    _ = rows | "Two" >> RunInference(Metered())
    result = pipeline.run()
    result.wait_until_finish()
    shown = headrace.beam.report(result, str(tmp_path / "run.html"))._repr_html_()
    assert "srcdoc=" in shown
    figures = json.loads((tmp_path / "run.json").read_text())
    assert (figures["command"], figures["exit_reason"], figures["predictions"]) == ("pipeline", "done", 6)
    assert figures["figures"]["batches"] == 6
    assert figures["usage"]["m"]["requests"] == 6
    page = (tmp_path / "run.html").read_text()
    assert "do not say how many rows came in" in page
    assert "How many rows came in is not known." in page
