"""A cluster for the tests that need one: they are not among the others, which run without Java."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts import each other as those of one folder do

import flink
from members import members


@pytest.fixture(scope="session")
def cluster():
    """Up and running; afterwards nothing is left of it."""
    found = flink.up("test")
    yield found
    flink.down(found.name)
    assert members(found.mark) == []
    assert not Path(found.scratch).exists()


@pytest.fixture
def words():
    """The arguments of the pipelines' command line."""
    return argparse.Namespace(delay=0.02, linger=60)
