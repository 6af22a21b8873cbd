"""Clusters for the tests that need one; they stand apart because the others run without Java."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts import each other as those of one folder do

import fetch
import flink
import from_java
import namespaces
import prism
import spark
import sql
from job_server import FOLDER, logs
from members import members

NAMES = ("test", "two", "spark", "sql", "from-java")
_TAIL = 150
"""Lines."""
_FETCHED = {
    "Flink": partial(fetch.flink_jars, FOLDER),
    "its job server": partial(fetch.job_server_jar, FOLDER),
    "Spark": partial(fetch.spark_home, FOLDER),
    "SQL": partial(fetch.sql_home, FOLDER),
    "the Java pipeline": partial(fetch.java_program, from_java.PROJECT, FOLDER),
}
"""What comes over the network, in the order of the tests; one after the other, as they share Maven's folder."""
_BUILT = {"Prism": prism.prism}
"""What takes the processors for minutes."""
_NEEDS = {
    "cluster": ("Flink", "its job server"),
    "two_machines": ("Flink", "its job server"),
    "on_spark": ("Spark",),
    "for_java": ("the Java pipeline", "Prism"),
    "beam_sql": ("SQL",),
    "on_prism": ("Prism",),
}
"""What a fixture waits for."""
_coming: dict[str, Future[str | Path]] = {}


def pytest_collection_modifyitems(items):
    """Flink's first, and last those that need Prism: while the others wait, it is built."""

    def place(item):
        return 2 * ("Prism" in _needs_of(item)) - item.path.stem.endswith("flink")

    items.sort(key=place)


def pytest_collection_finish(session):
    """From now on what these tests need is fetched and built beside them, with what the processors have to spare."""
    if session.config.option.collectonly:
        return
    needed = {what for item in session.items for what in _needs_of(item)}
    for makers, niceness in ((_FETCHED, 0), (_BUILT, 19)):
        one_by_one = ThreadPoolExecutor(1, initializer=os.nice, initargs=(niceness,))  # of a thread, and what it starts
        _coming.update({what: one_by_one.submit(make) for what, make in makers.items() if what in needed})
        one_by_one.shutdown(wait=False)


def pytest_sessionfinish():
    """What has not begun does not begin."""
    for future in _coming.values():
        future.cancel()


def _needs_of(item):
    return {what for name in item.fixturenames for what in _NEEDS.get(name, ())}


def _await_for(fixture):
    for what in _NEEDS[fixture]:
        _coming[what].result()


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
    _await_for("cluster")
    found = flink.up(NAMES[0])
    yield found
    flink.down(found.name)
    _assert_nothing_is_left_of(found)


@pytest.fixture(scope="session")
def two_machines():
    """The same, with two machines, each with a network of its own; at the end it crashes before it is taken down."""
    _await_for("two_machines")
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
    _await_for("on_spark")
    with spark.running(NAMES[2]) as engine:
        yield engine
    _assert_nothing_is_left_of(engine)


@pytest.fixture(scope="session")
def beam_sql():
    """Java's SqlTransform."""
    _await_for("beam_sql")
    with sql.running(NAMES[3]) as engine:
        yield engine
    _assert_nothing_is_left_of(engine)


@pytest.fixture(scope="session")
def for_java():
    """Starts the services that Java's pipelines need: ``with for_java(in_processes=...) as services``."""
    _await_for("for_java")

    @contextlib.contextmanager
    def running(*, in_processes):
        with from_java.running(NAMES[4], in_processes=in_processes) as services:
            yield services
        assert members(services.mark) == []

    return running


@pytest.fixture(scope="session")
def on_prism():
    """Prism, which each pipeline starts for itself."""
    _await_for("on_prism")


def _assert_nothing_is_left_of(cluster):
    assert members(cluster.mark) == []
    assert not Path(cluster.scratch).exists()


@pytest.fixture
def words():
    """The arguments of the pipelines' command line; models stay longer than workers take to start on a busy machine."""
    return argparse.Namespace(delay=0.02, linger=300)
