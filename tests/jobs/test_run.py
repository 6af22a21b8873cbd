"""A job runs as a pipeline: every row comes out once, in order, or nothing comes out at all."""

import json
import lzma
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from full_disk import full_disk
from headrace.core.answer import SKIP
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping
from headrace.core.result import PredictionResult
from headrace.jobs import beam_pipeline, parts
from headrace.jobs.beam_pipeline import take_options
from headrace.jobs.files import match
from headrace.jobs.job import CancelledError, Job
from headrace.jobs.reading import infer_schema
from headrace.jobs.run import Run, describe
from headrace.jobs.stored_rows import StoredOutput
from headrace.rows.examples import Examples
from toys import Acting, refuse


class Halve(ModelHandler):
    """Halves even numbers; fails for a batch with an odd one."""

    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        if any(number % model for number in batch):
            raise ValueError(f"odd: {max(batch)}\nand so on")
        return [PredictionResult(number, number // model, (inference_args or {}).get("name")) for number in batch]


class Broken(Halve):
    def load_model(self):
        raise OSError("no such\nweights")


class Fickle(Halve):
    """In its attempt number N it does with a number what the number's digit N says: predicts, fails or skips."""

    attempts = []

    def run_inference(self, batch, model, inference_args=None):
        (number,) = batch
        self.attempts.extend([None] * (number == 0))
        outcome = number // 3 ** (len(self.attempts) - 1) % 3
        if outcome == 1:
            raise ValueError("fickle")
        return [SKIP if outcome else number]


class Idle(PipelineRunner):  # as runners are that only stage a pipeline
    def run_pipeline(self, pipeline, options):
        return PipelineResult(PipelineState.DONE)


def empty(batch):
    """Empties the rows, and fails for some of them."""
    return [refuse(13)(row.popitem()[1]) for row in batch]


@pytest.fixture
def make(tmp_path):
    """Makes a job over JSONL files of numbers, each file a list; the file ``out.jsonl`` is already there."""
    (tmp_path / "out.jsonl").write_text("old\n")

    def job(*files, handler=None, output="out.jsonl", **options):
        for n, numbers in enumerate(files):
            text = "".join(json.dumps({"n": number}) + "\n" if number is not None else "?\n" for number in numbers)
            (tmp_path / f"in{n}.jsonl").write_text(text)
        sources = match([str(tmp_path / "in*.jsonl")])
        options.setdefault("examples", Examples(("n",), infer_schema(sources).columns))
        return Job(handler or Halve(), sources, str(tmp_path / output), **options)

    return job


@pytest.fixture
def lines(tmp_path):
    return lambda name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def test_every_row_comes_out_once_and_in_order_or_in_a_letter_that_says_everything(make, lines, tmp_path):
    report = Run(make([*range(0, 200, 2), 7, None, "x", *range(200, 400, 2)])).execute()
    assert lines("out.jsonl") == [{"n": n, "prediction": n // 2} for n in range(0, 400, 2)]
    assert (report.rows, report.predictions) == (203, 200)
    assert report.dead_letters == {
        ("reading", "json.decoder.JSONDecodeError"): 1,
        ("inference", "ValueError"): 1,
        ("inference", "TypeError"): 1,
    }
    assert sorted(os.listdir(tmp_path)) == ["in0.jsonl", "out.dead-letters.jsonl", "out.jsonl"]
    letters = {letter["error_type"]: letter for letter in lines("out.dead-letters.jsonl")}
    odd, unread = letters["ValueError"], letters["json.decoder.JSONDecodeError"]
    assert odd["row"] == {"n": 7}
    assert (odd["stage"], odd["operation"], odd["message"]) == ("inference", 0, "odd: 7\nand so on")
    assert odd["traceback"].startswith("Traceback (most recent call last):\n")
    assert odd["attempts"] >= 1
    assert odd["model_id"] is None
    assert unread["row"] == {"line": "?", "file": str(tmp_path / "in0.jsonl"), "line_number": 102}


def test_several_workers_lose_nothing(make, lines):
    options = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    report = Run(make(*([n * 10, n * 10 + 1] for n in range(5)), options=options)).execute()
    assert Counter(line["n"] for line in lines("out.jsonl")) == Counter(n * 10 for n in range(5))
    dead = Counter(letter["row"]["n"] for letter in lines("out.dead-letters.jsonl"))
    assert dead == Counter(n * 10 + 1 for n in range(5))
    assert (report.rows, report.totals.predictions) == (10, 5)


def test_of_what_a_repeated_bundle_says_of_a_row_one_thing_counts(make, lines, monkeypatch):
    monkeypatch.setattr(beam_pipeline, "FnApiRunner", lambda: FnApiRunner(bundle_repeat=2))
    Fickle.attempts.clear()
    report = Run(make(range(27), handler=Fickle(max_batch_size=1), runner="FnApiRunner", threshold=1)).execute()
    assert len(Fickle.attempts) == 3
    said = {n: {n % 3, n // 3 % 3, n // 9} for n in range(27)}
    assert [line["n"] for line in lines("out.jsonl")] == [n for n in said if 0 in said[n]]
    letters = lines("out.dead-letters.jsonl")
    assert [letter["row"]["n"] for letter in letters] == [n for n in said if 0 not in said[n] and 1 in said[n]]
    assert (report.predictions, report.failed, report.skipped) == (19, 7, 1)
    assert {letter["position"]["of"] for letter in letters} == {19}


def test_a_pipeline_that_was_not_run_leaves_everything_as_it_was(make, tmp_path, monkeypatch):
    monkeypatch.setattr(beam_pipeline, "FnApiRunner", Idle)
    with pytest.raises(RuntimeError, match="the runner ended the pipeline, but its last step has left no mark"):
        Run(make([0, 2], runner="FnApiRunner")).execute()
    assert (sorted(os.listdir(tmp_path)), (tmp_path / "out.jsonl").read_text()) == (["in0.jsonl", "out.jsonl"], "old\n")


def test_what_is_kept_and_the_models_name(make, lines):
    Run(make([2], keep=("n", "other"), inference_args={"name": "second"})).execute()
    assert lines("out.jsonl") == [{"n": 2, "other": None, "prediction": 1, "model_id": "second"}]


@pytest.mark.parametrize("numbers", [[1, 2, 13, 3], [1, 2.5, 13, [3]]], ids=["record batch", "records"])
def test_rows_are_written_as_they_were_read_whatever_the_handler_does_to_them(make, lines, numbers):
    columns = infer_schema(make(numbers).sources).columns
    handler = Acting(empty, min_batch_size=1, max_batch_size=1)
    Run(make(numbers, handler=handler, examples=Examples(None, columns))).execute()
    assert lines("out.jsonl") == [{"n": number, "prediction": number} for number in numbers if number != 13]
    assert [letter["row"] for letter in lines("out.dead-letters.jsonl")] == [{"n": 13}]


def test_a_key_from_a_column(make, lines):
    handler = KeyedModelHandler([KeyModelMapping([0, 2], Halve())])
    Run(make([0, 2, 4], handler=handler, examples=Examples(("n",), ("n",), "n"))).execute()
    assert lines("out.jsonl") == [{"n": 0, "prediction": 0}, {"n": 2, "prediction": 1}]
    (letter,) = lines("out.dead-letters.jsonl")
    assert (letter["row"], letter["error_type"]) == ({"n": 4}, "headrace.core.errors.UnknownKeyError")


def test_no_rows(make, lines):
    report = Run(make([])).execute()
    assert report.rows == 0
    assert lines("out.jsonl") == []


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_a_model_that_does_not_load_leaves_everything_as_it_was(make, tmp_path, output):
    run = Run(make([0], handler=Broken(), output=output))
    with pytest.raises(OSError, match="no such") as caught:
        run.execute()
    assert describe(caught.value) == "OSError: no such weights"
    assert sorted(os.listdir(tmp_path)) == ["in0.jsonl", "out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


@pytest.mark.parametrize("resume", [None, {"job": 1}], ids=["", "resume"])
@pytest.mark.parametrize(
    ("name", "content"), [("in1.jsonl.gz", b"\x1f\x8b\x08"), ("in1.jsonl.xz", lzma.compress(b'{"n": 4}\n') + b"{}")]
)
def test_a_file_that_breaks_off_or_goes_on_leaves_everything_as_it_was(make, tmp_path, name, content, resume):
    job = make([0, 2], resume=resume)
    (tmp_path / name).write_bytes(content)
    run = Run(replace(job, sources=match([str(tmp_path / "in*")])))
    with pytest.raises(OSError, match=rf"cannot read .*{name} as jsonl"):
        run.execute()
    assert sorted(os.listdir(tmp_path))[-3:] == ["in0.jsonl", name, "out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


@pytest.mark.parametrize(
    ("output", "most", "options"),
    [
        ("out.jsonl", 0, {"resume": {"job": 1}}),
        ("out.jsonl", 40_000, {}),
        ("out.jsonl", 40_000, {"resume": {"job": 1}}),
        ("out.jsonl", 40_000, {"runner": "FnApiRunner"}),
        ("out.parquet", 20_000, {}),
    ],
)
def test_a_full_disk_leaves_everything_as_it_was(make, tmp_path, output, most, options):
    (tmp_path / output).write_text("old\n")
    job = make(range(0, 16_000, 2), output=output, **options)
    before = sorted(os.listdir(tmp_path))
    with full_disk(most), pytest.raises(Exception, match=r"too large|cannot write"):
        Run(job).execute()
    assert (tmp_path / output).read_text() == "old\n"
    kept = [name for name in os.listdir(tmp_path) if name.startswith(".") and "resume" in options]
    assert sorted(os.listdir(tmp_path)) == sorted([*before, *kept])
    assert Run(job).execute().rows == 8000


@pytest.mark.parametrize("options", [{}, {"runner": "FnApiRunner"}], ids=["", "Beam"])
def test_a_full_disk_costs_no_dead_letter_of_a_resumable_run(make, monkeypatch, options):
    """The part of predictions cannot be written; that of dead letters is closed durably all the same."""
    monkeypatch.setattr(parts, "_SYNC_SECONDS", 1000)
    job = make([7, 9, *range(0, 16_000, 2)], resume={"job": 1}, **options)
    run = Run(job)
    with full_disk(20_000), pytest.raises(Exception, match="too large"):
        run.execute()
    assert len(StoredOutput.find(run.output.folder).bad.places) == 2
    assert Run(job).execute().rows == 8002


def test_a_cancelled_run_leaves_everything_as_it_was(make, tmp_path):
    started, go_on = threading.Event(), threading.Event()

    def wait(batch):
        started.set()
        go_on.wait(60)
        return batch

    run = Run(make(range(100), handler=Acting(wait), batch_sizes={"max_batch_size": 1}))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run.execute)
        assert started.wait(60)
        run.cancel()
        go_on.set()
    assert type(running.exception()) is CancelledError
    assert sorted(os.listdir(tmp_path)) == ["in0.jsonl", "out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


@pytest.mark.parametrize("output", ["in0.jsonl", "in0.parquet"])
def test_an_input_is_never_overwritten(make, tmp_path, output):
    (tmp_path / "in0.dead-letters.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(ConfigurationError, match="is among the inputs and would be overwritten"):
        Run(make([0], output=output))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_what_is_wrong_is_said_at_construction(make):
    with pytest.raises(ValueError, match="NoRunner"):
        Run(make([0], runner="NoRunner"))
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1"):
        Run(make([0], batch_sizes={"max_batch_size": 0}))


def test_options_of_beam_are_told_from_files():
    arguments = ["a.csv", "--direct_num_workers", "2", "b.csv", "--streaming", "c.csv", "--job_name=x"]
    assert take_options(arguments) == ("a.csv", "b.csv", "c.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.csv", "--kepp=x"], "neither headrace nor Beam has an option --kepp"),
        (["a.csv", "-z"], "neither headrace nor Beam has an option -z."),
        (["--direct_num_workers=x"], "invalid int value: 'x'."),
        (["--direct_running_mode", "quickly"], "invalid choice: 'quickly'"),
    ],
)
def test_options_that_beam_does_not_know(arguments, message):
    with pytest.raises(ConfigurationError) as caught:
        take_options(arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("no such\nfile [while running 'A/B']"), "OSError: no such file"),
        (KeyError(), "KeyError"),
        (RuntimeError("FileNotFoundError: [Errno 2] 'x' [while running 'A']"), "FileNotFoundError: [Errno 2] 'x'"),
        (RuntimeError("on the whole: no"), "RuntimeError: on the whole: no"),
        (CancelledError("cancelled"), "headrace.jobs.job.CancelledError: cancelled"),
        (
            RuntimeError(
                'Traceback (most recent call last):\n  File "a.py", line 1\n    x()\n    ^^^\n'
                "OSError: no such\nfile [while running 'A/B']\n"
            ),
            "OSError: no such file",
        ),
    ],
)
def test_an_error_in_one_line(error, line):
    assert describe(error) == line


def test_cancelling_concerns_one_run(make):
    job = make([0, 2], resume={"job": 1})
    first, other = Run(job), Run(make([0, 2]))
    first.cancel()
    assert other.execute().predictions == 2
    with pytest.raises(CancelledError):
        first.execute()
    assert Run(job).execute().predictions == 2
