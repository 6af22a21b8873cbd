"""A few files for the readers, the same ones each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent / "targets"))

import readers

pytestmark = pytest.mark.large


def test_each_record_comes_out_as_it_was_made():
    readers.run(1, 300)
