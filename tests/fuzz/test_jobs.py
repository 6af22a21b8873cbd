"""A few whole runs, the same ones each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import jobs

pytestmark = pytest.mark.large


def test_each_row_is_a_prediction_or_a_dead_letter():
    jobs.run(1, 12)
