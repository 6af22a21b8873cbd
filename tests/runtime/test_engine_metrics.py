"""Recorders are found by entry point once their engine is imported, and never import an engine."""

from __future__ import annotations

import importlib
import sys

import pytest

from headrace.runtime.observers import EngineMetrics

RECORDER = """
from contextlib import contextmanager

import {engine}

class MetricRecorder:
    @contextmanager
    def recording(self, *, process_wide=True):
        records, before = [], {engine}.counted
        try:
            yield records
        finally:
            records.append({engine}.counted - before)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes fake engines that only count, each with an installed recorder."""
    folder = tmp_path / "engines-1.dist-info"
    folder.mkdir()
    folder.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: engines\nVersion: 1\n")

    def write(*engines):
        for engine in engines:
            tmp_path.joinpath(f"{engine}.py").write_text("counted = 0\n")
            tmp_path.joinpath(f"{engine}_recorder.py").write_text(RECORDER.format(engine=engine))
        lines = [f"{engine} = {engine}_recorder:MetricRecorder\n" for engine in engines]
        folder.joinpath("entry_points.txt").write_text("[headrace.recorders]\n" + "".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        with EngineMetrics().recording():  # takes out what other tests have counted for the process
            pass

    yield write
    for name in [name for name in sys.modules if name.startswith("engine_of_tests")]:
        del sys.modules[name]


def test_recorders_exist_only_for_imported_engines_and_keep_what_was_counted_before_an_exception(install):
    def work():
        a.counted += 1
        b.counted += 5
        raise ZeroDivisionError

    install("engine_of_tests_a", "engine_of_tests_b")
    recorders = EngineMetrics()
    with recorders.recording() as nothing:
        pass
    a = importlib.import_module("engine_of_tests_a")
    with recorders.recording() as records:
        a.counted += 2
    assert (nothing, records) == ([], [2])
    assert "engine_of_tests_b" not in sys.modules
    b = importlib.import_module("engine_of_tests_b")
    with pytest.raises(ZeroDivisionError), recorders.recording() as records:
        work()
    assert records == [1, 5]
