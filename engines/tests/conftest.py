"""Clusters for the tests that need one; they stand apart because the others run without Java."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts import each other as those of one folder do

import flink
import from_java
import namespaces
import spark
import sql
from job_server import logs
from members import members

NAMES = ("test", "two", "spark", "sql", "from-java")
_TAIL = 150
"""Lines."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Adds the clusters' last log lines to a failure: in CI their logs are gone afterwards."""
    report = (yield).get_result()
    if report.failed:
        for path in sorted(path for name in NAMES for path in logs(name).glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-_TAIL:]
            report.sections.append((f"the end of {path.parent.name}/{path.name}", "\n".join(lines)))


@pytest.fixture(scope="session")
def cluster():
    """Up and running; afterwards nothing is left of it."""
    found = flink.up(NAMES[0])
    yield found
    flink.down(found.name)
    _assert_nothing_is_left_of(found)


@pytest.fixture(scope="session")
def two_machines():
    """The same, with two machines, each with a network of its own; at the end it crashes before it is taken down."""
    found = flink.up(NAMES[1], machines=2)
    yield found
    for pid in flink.Cluster.read(found.name).pids.values():
        os.kill(pid, signal.SIGKILL)
    flink.down(found.name)
    _assert_nothing_is_left_of(found)
    assert not namespaces.stands(found.namespace("tm1").rpartition("-")[0], 1)


@pytest.fixture(scope="session")
def on_spark():
    """A job server that has Spark in it."""
    with spark.running(NAMES[2]) as engine:
        yield engine
    _assert_nothing_is_left_of(engine)


@pytest.fixture(scope="session")
def beam_sql():
    """Java's SqlTransform."""
    with sql.running(NAMES[3]) as engine:
        yield engine
    _assert_nothing_is_left_of(engine)


@pytest.fixture(scope="session")
def for_java():
    """Starts the services that Java's pipelines need: ``with for_java(in_processes=...) as services``."""

    @contextlib.contextmanager
    def running(*, in_processes):
        with from_java.running(NAMES[4], in_processes=in_processes) as services:
            yield services
        assert members(services.mark) == []

    return running


def _assert_nothing_is_left_of(cluster):
    assert members(cluster.mark) == []
    assert not Path(cluster.scratch).exists()


@pytest.fixture
def words():
    """The arguments of the pipelines' command line; models stay longer than workers take to start on a busy machine."""
    return argparse.Namespace(delay=0.02, linger=300)
