"""What processes write down comes together in a table."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def recording(engine_module, monkeypatch, tmp_path):
    module = engine_module("recording")
    monkeypatch.setenv(module.RECORDS, str(tmp_path))
    monkeypatch.setenv("HEADRACE_TASK_MANAGER", "tm1")
    return module


class Handler:
    def load_model(self):
        return 10

    def run_inference(self, batch, model, inference_args=None):
        return (model * x for x in batch)


def test_calls_of_a_handler_are_recorded(recording, tmp_path):
    class Recorded(recording.Recorded, Handler):
        pass

    handler = Recorded()
    model = handler.load_model()
    assert [list(handler.run_inference(batch, model)) for batch in ([1, 2], [3])] == [[10, 20], [30]]
    (process,) = recording.read(tmp_path)
    assert (process.pid, process.task_manager, process.elements, process.loads) == (os.getpid(), "tm1", 3, 1)
    assert process.pss > 0
    assert f"| {os.getpid()} | tm1 | 3 | 1 |" in recording.table([process])


def test_setup_seconds_are_recorded(recording, tmp_path):
    calls = []
    recording.timed_setup(calls.append)("a DoFn")
    assert calls == ["a DoFn"]
    (process,) = recording.read(tmp_path)
    assert len(process.setups) == 1
    assert process.elements == process.loads == 0


def test_records_of_a_job_that_is_over_go_nowhere(recording, monkeypatch, tmp_path):
    monkeypatch.setenv(recording.RECORDS, str(tmp_path / "gone"))
    recording.write("batch", elements=1)


def test_a_line_that_is_just_being_written_does_not_count_yet(recording, tmp_path):
    (tmp_path / "1.jsonl").touch()
    (tmp_path / "2.jsonl").write_text('{"what": "setu')
    assert recording.read(tmp_path) == []
    recording.write("batch", elements=1)
    with (tmp_path / f"{os.getpid()}.jsonl").open("a") as file:
        file.write('{"what": "ba')
    (process,) = recording.read(tmp_path)
    assert process.elements == 1
