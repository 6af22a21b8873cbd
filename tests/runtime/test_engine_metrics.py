"""Recorders are found by entry point once their engine is imported, and never import an engine."""

from __future__ import annotations

import importlib
import json
import subprocess
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

FRESH = """
import json, sys
from headrace.runtime.observers import EngineMetrics
with EngineMetrics().recording() as records:
    pass
print(json.dumps([records, sorted({name.partition(".")[0] for name in sys.modules})]))
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


def test_recorders_exist_only_for_imported_engines(install):
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
    with recorders.recording() as records:
        a.counted += 1
        b.counted += 5
    assert records == [1, 5]


def test_recording_keeps_updates_from_before_an_exception(install):
    install("engine_of_tests_d")
    engine = importlib.import_module("engine_of_tests_d")
    recorders = EngineMetrics()

    def work():
        engine.counted += 4
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), recorders.recording() as records:
        work()
    assert records == [4]


def test_recording_does_not_import_beam():
    done = subprocess.run([sys.executable, "-c", FRESH], stdout=subprocess.PIPE, check=True)
    records, modules = json.loads(done.stdout)
    assert records == []
    assert "headrace" in modules
    assert not {"apache_beam", "numpy"} & set(modules)
