"""Shared by the tests of the Beam adapter: pipelines whose outputs can be read."""

from __future__ import annotations

import pytest

from pipelines import Run


@pytest.fixture
def run():
    return Run()


@pytest.fixture(scope="session")
def make_run():
    return Run
