"""Headrace on Spark: every result is right, the worker processes of both executors share one model, nothing is left."""

from __future__ import annotations

import digits_on_flink
import pytest
from job import run


@pytest.mark.parametrize("kind", ["plain", "timeout"])
def test_digits_are_predicted_right_and_the_model_is_loaded_once(on_spark, words, tmp_path, kind):
    report = run(on_spark, digits_on_flink.make(kind, tmp_path, words), workers=1)
    assert report.problems == []
    assert report.loads == 1, str(report)
    assert len([process for process in report.processes if process.setups]) > 2, str(report)  # of two executors
