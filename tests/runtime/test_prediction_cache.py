"""Predictions that were made before are not asked for again, and no other ones are given in their place."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from itertools import count

import pytest

from headrace import BatchingConfig, ConfigurationError, Failure, KeyedModelHandler, KeyModelMapping, predict
from headrace.batching.batcher import Batch
from headrace.core.events import CacheUsed
from headrace.runtime import prediction_cache
from headrace.runtime.open_worker import open_worker
from headrace.runtime.plan import ONLY
from headrace.runtime.prediction_cache import PredictionCache, PredictionStore
from headrace.runtime.prepare import InferenceRequest, prepare
from metered import ASKED, AsyncMetered, LocalMetered, Metered
from toys import Acting, Events, run, with_attributes

pytestmark = pytest.mark.usefixtures("requests_end", "module_travels")

BOTH = pytest.mark.parametrize("kind", [Metered, AsyncMetered])


@pytest.fixture
def ask(tmp_path):
    """What comes out for elements with a cache in a file of the test's; and what was asked for, from the smallest.

    Requests leave in order, and arrive as their threads have it.
    """

    def call(handler, elements, **options):
        ASKED.clear()
        options = {"cache": str(tmp_path / "cache"), **options}
        found = list(predict(handler, elements, on_failure="yield", **options))
        asked = sorted(ASKED, key=lambda one: one["n"] if isinstance(one, dict) else one)
        return ["failed" if isinstance(one, Failure) else one for one in found], asked

    return call


def test_only_what_is_missing_of_a_batch_is_asked_for(ask):
    assert ask(Metered(size=4), [1, 2, 13, 4]) == ([2, 4, "failed", 8], [1, 2, 4, 13])
    assert ask(Metered(size=4), [5, 4, 6, 2, 13, 1]) == ([10, 8, 12, 4, "failed", 2], [5, 6, 13])


@BOTH
def test_predictions_are_asked_for_once(ask, kind):
    assert ask(kind(), [1, 2, 3]) == ([2, 4, 6], [1, 2, 3])
    assert ask(kind(), [3, 4, 1, 2, 3]) == ([6, 8, 2, 4, 6], [4])
    assert ask(kind(), [1, 2, 3, 4]) == ([2, 4, 6, 8], [])


def test_skips_are_kept_and_failures_are_not(ask):
    expected = [2, "failed", 4, "failed"]  # 7 has no output
    assert ask(Metered(), [1, 7, 13, 2, 99]) == (expected, [1, 2, 7, 13, 99])
    assert ask(Metered(), [1, 7, 13, 2, 99]) == (expected, [13, 99])


@BOTH
def test_equal_elements_are_asked_for_once_though_all_are_on_their_way(ask, kind):
    elements = [n % 5 for n in range(500)]
    found, asked = ask(kind(), elements)
    assert found == [2 * n for n in elements]
    assert asked == [0, 1, 2, 3, 4]


def test_elements_whose_equal_fails_are_asked_for_themselves(ask):
    found, asked = ask(Metered(), [99, 1] * 10)
    assert found == ["failed", 2] * 10
    assert asked == [1] + [99] * 10


def test_key_is_the_example_after_preprocessing_and_the_prediction_that_before_postprocessing(ask):
    handler = Metered().with_preprocess_fn(int).with_postprocess_fn(str)
    assert ask(handler, ["1", "02"]) == (["2", "4"], [1, 2])
    assert ask(Metered(), [1, 2, 3]) == ([2, 4, 6], [3])


def test_other_models_and_arguments_are_asked(ask):
    handler = KeyedModelHandler([KeyModelMapping(["a"], Metered("m")), KeyModelMapping(["b"], Metered("n"))])
    assert ask(handler, [("a", 1), ("b", 1)])[1] == [1, 1]
    assert ask(handler, [("b", 1), ("a", 1), ("a", 2)])[1] == [2]
    assert ask(Metered("o"), [1]) == ([2], [1])
    assert ask(Metered(), [1], inference_args={"plus": 5}) == ([7], [1])
    assert ask(Metered(), [1], inference_args={"plus": 5}) == ([7], [])
    assert ask(Metered(), [1.0]) == ([2.0], [1.0])


@pytest.mark.parametrize("isolate", [False, True])
def test_local_models_are_not_called_again_even_if_they_change_their_examples(ask, isolate):
    handler = LocalMetered(min_batch_size=2, max_batch_size=2)
    assert ask(handler, [{"n": 1}, {"n": 2}]) == ([2, 4], [{"n": 1}, {"n": 2}])
    assert ask(handler, [{"n": 2}, {"n": 1}, {"n": 3}], isolate=isolate) == ([4, 2, 6], [] if isolate else [{"n": 3}])
    assert ask(handler, [{"n": 3}]) == ([6], [])


def test_hits_and_misses_are_reported(tmp_path):
    def used(elements):
        events = Events()
        spec = prepare(Metered(size=2), InferenceRequest(cache=str(tmp_path / "cache")))
        with closing(open_worker(spec)) as worker:
            run(worker, elements, events)
        return events.of(CacheUsed)

    assert used([1, 2, 3]) == [CacheUsed("", 0, 2), CacheUsed("", 0, 1)]
    assert used([3, 4]) == [CacheUsed("", 1, 1)]


@pytest.mark.parametrize(
    ("example", "prediction", "said"),
    [(1, threading.Lock(), "cannot be pickled"), (threading.Lock(), 1, "cannot be compared with others")],
    ids=["prediction", "example"],
)
def test_what_cannot_be_kept_is_asked_for_each_time(ask, caplog, example, prediction, said):
    def act(batch):
        given.extend(batch)
        return [prediction] * len(batch)

    given = []
    for _ in range(2):
        assert ask(with_attributes(Acting(act), cache_key=str), [example])[0] == [prediction]
    assert given == [example] * 2
    assert said in caplog.text


def test_file_that_breaks_while_workers_run_costs_requests_and_no_outcome(tmp_path, caplog):
    path = tmp_path / "cache"

    def elements():
        yield 1
        with sqlite3.connect(path) as database:
            database.execute("DROP TABLE predictions")
        database.close()
        yield from range(2, 7)

    assert list(predict(Metered(), elements(), cache=str(path))) == [2, 4, 6, 8, 10, 12]
    assert "requests are sent, and paid for, without it" in caplog.text


@BOTH
def test_file_that_others_have_locked_for_too_long_is_used_again_when_they_let_go(
    kind, ask, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(prediction_cache, "_BUSY_SECS", 0.1)
    monkeypatch.setattr(prediction_cache, "_PAUSE_SECS", 0.0)
    path = tmp_path / "cache"
    ask(kind(), range(5))

    def elements():
        with closing(sqlite3.connect(path)) as database:
            database.execute("BEGIN IMMEDIATE")
            while "failed" not in caplog.text:
                yield 0
                yield next(numbers)
        while "works again" not in caplog.text:
            yield next(numbers)
        end.append(next(numbers))
        yield from range(end[0], end[0] + 100)

    numbers, end = count(100), []
    ask(kind(), elements())
    assert ask(kind(), range(end[0], end[0] + 100))[1] == []


def test_others_go_on_while_one_waits_for_a_file_that_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_cache, "_PAUSE_SECS", 0.0)
    spec = prepare(Metered(), InferenceRequest(cache=str(tmp_path / "cache")))
    waiting, done, calls = threading.Event(), threading.Event(), count()

    def get(*_):
        waiting.set()
        return {} if next(calls) else done.wait(60) and {}

    with closing(PredictionCache(spec, spec.cache)) as cache:
        monkeypatch.setattr(PredictionStore, "put", lambda *_: sqlite3.connect("/"))
        monkeypatch.setattr(PredictionStore, "get", get)
        cache.keep([b"key"], [1])
        one = threading.Thread(target=cache.look_up, args=(ONLY, Batch([1], [0])))
        one.start()
        assert waiting.wait(60)
        cache.keep([b"key"], [1])
        done.set()
        one.join(60)
    assert next(calls) == 1


def test_prediction_of_a_class_that_is_gone_is_asked_for_again(ask, tmp_path):
    assert ask(Metered(), [1, 2])[1] == [1, 2]
    with sqlite3.connect(tmp_path / "cache") as database:
        keys = [key for (key,) in database.execute("SELECT key FROM predictions")]
    database.close()
    store = PredictionStore(str(tmp_path / "cache"), 1 << 30)
    store.put([(keys[0], b"cno_such_module\nGone\n.")])
    store.close()
    found, asked = ask(Metered(), [1, 2])
    assert found == [2, 4]
    assert len(asked) == 1


def locked(**attributes):
    """A handler with a lock, which has no content."""
    return with_attributes(Acting(), lock=threading.Lock(), **attributes)


@pytest.mark.parametrize(
    ("handler", "options", "reason"),
    [
        (Metered(), {"cache": 5}, "path of a file"),
        (Metered(), {"cache": "gs://bucket/cache"}, "path of a file"),
        (Metered(), {"cache": "/"}, "cannot be used"),
        (locked(), {}, r"'lock' cannot be compared .* cache_key\(\)"),
        (locked(cache_key=threading.Lock), {}, r"what Acting\.cache_key\(\) returns, which cannot be"),
        (Metered(), {"inference_args": {"f": threading.Lock()}}, "compares the inference_args, which cannot be"),
        (Metered().with_no_batching(), {}, "leave with_no_batching"),
        (Metered(), {"batching": BatchingConfig(columnar=True)}, "columnar"),
    ],
)
def test_wrong_use_is_one_error_at_construction(ask, handler, options, reason):
    with pytest.raises(ConfigurationError, match=reason):
        ask(handler, [1], **options)


MANY = range(100, 250)
DOUBLES = [2 * n for n in MANY]


class Logged(Metered):
    """Leaves a line in a file for each request, which takes a while."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def request(self, batch, model, inference_args=None):
        with self.log.open("a") as log:
            log.write(f"{batch[0]}\n")
        time.sleep(0.002)
        return super().request(batch, model)

    def lines(self):
        return self.log.read_text().split() if self.log.exists() else []


def test_run_that_is_killed_pays_again_only_for_what_was_in_flight(worker_process, tmp_path, wait_until):
    handler = Logged(tmp_path / "log")
    spec = prepare(handler, InferenceRequest(cache=str(tmp_path / "cache")))
    first = worker_process(spec)
    first.begin(MANY)
    assert wait_until(lambda: len(handler.lines()) > 40)
    first.process.kill()
    first.process.wait()
    before = len(handler.lines())
    assert worker_process(spec).run(MANY).good == DOUBLES
    assert {*map(int, handler.lines())} == {*MANY}
    assert len(handler.lines()) < len(MANY) + before


def test_processes_share_a_cache_while_both_run(worker_process, tmp_path):
    handlers = [Logged(tmp_path / name) for name in ("one", "two", "three")]
    request = InferenceRequest(cache=str(tmp_path / "cache"))
    *both, third = [worker_process(prepare(handler, request)) for handler in handlers]
    for worker in both:
        worker.begin(MANY)
    assert [worker.outcomes().good for worker in both] == [DOUBLES] * 2
    assert third.run(MANY).good == DOUBLES
    assert handlers[2].lines() == []


def test_predictions_of_a_fallback_are_kept_as_its_own(ask):
    assert ask(Metered("m"), [99, 1], fallback=Acting(lambda batch: [0 for _ in batch])) == ([0, 2], [1, 99])
    assert ask(Metered("m"), [99, 1]) == (["failed", 2], [99])
    assert ask(Metered("m"), [99, 1], fallback=Acting(lambda batch: 1 / 0)) == (["failed", 2], [99])


def add(batch):
    """Is broken for negative numbers."""
    if min(batch) < 0:
        raise ValueError("negative")
    return [one + 100 for one in batch]


@pytest.mark.parametrize("isolate", [False, True])
def test_breaker_that_only_new_elements_have_opened_hides_nothing_that_is_in_the_cache(ask, isolate):
    handler = Acting(add, min_batch_size=1, max_batch_size=2).with_postprocess_fn(str)
    bad, good = list(range(-20, 0)), list(range(11))
    assert len(ask(handler, good, isolate=isolate)[0]) == 11
    found, _ = ask(handler, [*bad, *good], isolate=isolate, fallback=Acting(max_batch_size=1))
    assert found == [*map(str, bad), *(str(n + 100) for n in good)]
