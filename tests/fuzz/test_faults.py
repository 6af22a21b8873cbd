"""A few schedules of faults, the same ones each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import faults

pytestmark = pytest.mark.large


def test_each_element_has_the_outcome_that_it_deserves():
    faults.run(1, 5)
