"""How many workers ``auto`` adds to the first one, and what a worker does with its parts of the input."""

import asyncio
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
from toys import Acting


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


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """What one of two workers has, over so many rows in batches of a size: its run and its runner."""
    monkeypatch.setattr(workers, "Workers", lambda steps, *_: steps)

    def make(handler, rows, size, **options):
        (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(rows)))
        sizes = {"min_batch_size": size, "max_batch_size": size}
        sources, output = match([str(tmp_path / "in.jsonl")]), str(tmp_path / "out.jsonl")
        run = Run(Job(handler, sources, output, batch_sizes=sizes, workers=2, **options))
        run.output.prepare()
        return run, PartRunner(run._driver)

    return make


def test_a_worker_goes_on_with_another_part_and_batches_go_across(worker, monkeypatch):
    monkeypatch.setattr(workers, "_PAUSE_SECONDS", 0)  # it answers after each batch
    run, runner = worker(Acting(), 2000, 64)
    given = list(Splits(run.job.sources, 2))
    assert len(given) > 3
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


def test_a_worker_that_is_stopped_between_two_parts_keeps_what_is_paid_for(worker):
    run, runner = worker(Slow(), 1, 1, resume={})
    assert not runner.ask(GoOn((0, run.job.sources[0]))).is_done
    assert Slow.begun.wait(60)  # the request is on its way
    assert runner.ask(Stop(keep=False)).caught is None
    runner.close()
    assert len(StoredOutput.find(run.output.folder).places) == 1
    run.output.clean()
