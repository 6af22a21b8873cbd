"""A few Parquet files, the same ones each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import parquet

pytestmark = pytest.mark.large


def test_parquet_files_are_read_and_written_unchanged():
    parquet.run(1, 60)
