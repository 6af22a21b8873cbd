"""How many workers ``auto`` adds to the first one, and what a worker does with its parts of the input."""

import asyncio
import json
import threading

import pytest

from headrace.core.events import BatchCompleted
from headrace.core.handler import ModelHandler
from headrace.jobs import workers
from headrace.jobs.files import match
from headrace.jobs.job import Job
from headrace.jobs.run import Run
from headrace.jobs.splits import Splits
from headrace.jobs.stored_rows import StoredOutput
from headrace.jobs.workers import GoOn, PartRunner, Stop, more_workers


@pytest.mark.parametrize(
    ("busy_cores", "most", "copies", "more"),
    [
        (1.0, 2, 9, 1),
        (1.2, 2, 9, 1),  # a thread of the model's, and some reading
        (1.9, 2, 9, 0),
        (1.0, 8, 99, 7),
        (2.1, 8, 99, 3),
        (8.0, 8, 99, 0),
        (0.1, 4, 99, 3),
        (1.0, 1, 99, 0),
        (1.0, 0, 99, 0),  # a device that nobody can count
        (1.0, 8, 2.6, 2),
    ],
)
def test_a_model_gets_the_cores_that_it_leaves_idle(busy_cores, most, copies, more):
    assert more_workers(busy_cores, most, copies) == more


class Count(ModelHandler):
    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return [model(batch)] * len(batch)


def test_a_worker_goes_on_with_another_part_and_batches_go_across(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_PAUSE_SECONDS", 0)  # it answers after each batch
    monkeypatch.setattr(workers, "Workers", lambda steps, *_: steps)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(2000)))
    sources = match([str(tmp_path / "in.jsonl")])
    sizes = {"min_batch_size": 64, "max_batch_size": 64}
    run = Run(Job(Count(), sources, str(tmp_path / "out.jsonl"), batch_sizes=sizes, workers=2))
    run.output.prepare()
    given = list(Splits(sources, 2))
    assert len(given) > 3
    runner = PartRunner(run._driver)
    events, coming = [], iter(given)
    done = runner.ask(GoOn(next(coming)))
    while not done.is_done:
        events += done.events
        more = next(coming, None) if done.reads_last else None
        done = runner.ask(GoOn(more))
    runner.close()
    assert list(coming) == []
    batches = [event.examples for event in [*events, *done.events] if isinstance(event, BatchCompleted)]
    assert batches == [64] * (2000 // 64) + [2000 % 64]
    assert len(StoredOutput.find(run.output.folder).places) == 2000
    run.output.clean()


class Slow(ModelHandler):
    begun = threading.Event()

    def load_model(self):
        return None

    async def run_inference(self, batch, model, inference_args=None):
        self.begun.set()
        await asyncio.sleep(0.5)
        return [1] * len(batch)


def test_a_worker_that_is_stopped_between_two_parts_keeps_what_is_paid_for(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "Workers", lambda steps, *_: steps)
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    sources = match([str(tmp_path / "in.jsonl")])
    sizes = {"max_batch_size": 1}
    run = Run(Job(Slow(), sources, str(tmp_path / "out.jsonl"), batch_sizes=sizes, resume={}, workers=2))
    run.output.prepare()
    runner = PartRunner(run._driver)
    assert not runner.ask(GoOn((0, sources[0]))).is_done
    assert Slow.begun.wait(60)  # the request is on its way
    assert runner.ask(Stop(keep=False)).caught is None
    runner.close()
    assert len(StoredOutput.find(run.output.folder).places) == 1
    run.output.clean()
