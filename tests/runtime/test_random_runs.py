"""Whatever chance combines of handlers, faults, caches, budgets, fallbacks and threads: no element is lost or doubled.

Loops and clocks run three hundred times as fast as time does, so that outages end soon.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from contextlib import closing

import pytest

from headrace import (
    SKIP,
    BatchingConfig,
    Budget,
    BudgetError,
    ElementFailure,
    EngineModelHandler,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    Price,
    RemoteModelHandler,
    RetryConfig,
    report_usage,
)
from headrace.core.remote import ElementRetry
from headrace.core.result import Failure, Skipped
from headrace.runtime import endpoints
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.usage_meter import end_budget
from toys import Events

pytestmark = pytest.mark.usefixtures("requests_end")

SPEED = 300.0


class FastLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        select = self._selector.select
        self._selector.select = lambda timeout=None: select(None if timeout is None else timeout / SPEED)

    def time(self):
        return SPEED * time.monotonic()


class FastClock:
    def time_ns(self):
        return int(SPEED * time.monotonic_ns())

    def sleep(self, secs):
        time.sleep(secs / SPEED)


class Failed(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status_code = status


class Script:
    """What a model does with its batches: in an outage, or now and then, it fails; some numbers always do.

    Args:
        name: of the model, for the budget.
        chance: decides.
        elements_fail: whether it may answer for single elements as remote handlers do.
    """

    def __init__(self, name, chance, *, elements_fail):
        self.name = name
        self.elements_fail = elements_fail
        self.returned = Counter()
        """Numbers that were answered."""
        self.size = {"min_batch_size": chance.choice([1, 4]), "max_batch_size": chance.choice([4, 16])}
        if chance.random() < 0.2:
            self.size |= {"length_fn": lambda one: 1.0, "lookahead": 20}
        self._chance = random.Random(chance.random())
        self._lock = threading.Lock()
        self._calls = 0
        self._outage = range(first := chance.randrange(20), first + chance.choice([0, 0, 30]))
        self._down = chance.choice([500, 503, 429])
        self._faulty = chance.choice([0, 0, 0.1])
        self._residues = chance.sample(range(20), 20)
        """Which numbers, modulo 20, are skipped, fail for good, are asked for again, fail their batch; others: none."""

    def predict(self, batch):
        report_usage(self.name, output_tokens=len(batch))
        with self._lock:
            self._calls += 1
            if self._calls in self._outage:
                raise Failed(self._down)
            if self._chance.random() < self._faulty:
                raise Failed(self._chance.choice([500, 503, 400]))
            if self.fate(batch, 3):
                raise ValueError("bad")
            answers = [self._answer(one) for one in batch]
            self.returned.update(n for n, one in zip(batch, answers, strict=True) if type(one) is tuple)
            return answers

    def fate(self, batch, place):
        return any(one % 20 == self._residues[place] for one in batch)

    def _answer(self, one):
        if self.fate([one], 0):
            return SKIP
        if self.elements_fail and self.fate([one], 1):
            return ElementFailure(ValueError(one))
        if self.elements_fail and self.fate([one], 2):
            return ElementRetry(Failed(self._chance.choice([500, 503])), self._chance.choice([None, 0.1]))
        return self.name, one


class Scripted:
    """Does what a script says."""

    def __init__(self, script):
        super().__init__()
        self.script = script

    def batch_elements_kwargs(self):
        return self.script.size

    def cache_key(self):
        return self.script.name


class Local(Scripted, ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return self.script.predict(batch)


class Plain(Scripted, RemoteModelHandler):
    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        return self.script.predict(batch)


class Asynchronous(Plain):
    async def request(self, batch, model, inference_args=None):
        await asyncio.sleep(0.1)
        return self.script.predict(batch)


class OfEngine(Scripted, EngineModelHandler):
    batch_elements_kwargs = EngineModelHandler.batch_elements_kwargs

    def load_model(self):
        return object()

    async def submit(self, example, model, inference_args=None):
        return self.script.predict([example])[0]


class Scene:
    """A handler with options as chance has it, and what bundles on some threads get from it."""

    def __init__(self, seed, folder):
        chance = self.chance = random.Random(seed)
        self.scripts = []
        self.has_keys = chance.random() < 0.3
        models = [self._handler() for _ in range(3 if self.has_keys else 1)]
        first = models[0]
        if self.has_keys:
            first = KeyedModelHandler([KeyModelMapping([key], model) for key, model in enumerate(models)])
        budget = Budget(chance.choice([1, 3, 10, 30]), prices={"*": Price(request=1)})
        batching = BatchingConfig(min_batch_size=8, max_batch_size=8)
        request = InferenceRequest(
            cache=chance.choice([None, str(folder / "cache")]),
            budget=chance.choice([None, budget]),
            fallback=[self._handler() for _ in range(chance.choice([0, 1, 2]))] or None,
            batching=None if self.has_keys else chance.choice([None, batching]),
            retry=RetryConfig(timeout_secs=chance.choice([1.0, 45.0])),
            clock=FastClock(),
        )
        self.spec = catching(prepare(first, request), Exception)
        self.bundles = []
        self._abandons = chance.random() < 0.3

    def _handler(self):
        kind = self.chance.choice([Plain, Asynchronous, Local, OfEngine])
        name = f"model {len(self.scripts)}"
        self.scripts.append(Script(name, self.chance, elements_fail=issubclass(kind, Plain)))
        return kind(self.scripts[-1])

    def play(self):
        threads = [
            threading.Thread(target=self._run, args=(random.Random(self.chance.random()),), daemon=True)
            for _ in range(self.chance.choice([1, 3]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "it hangs"
        end_budget(self.spec)

    def _run(self, chance):
        with closing(open_worker(self.spec)) as worker:
            for _ in range(chance.choice([1, 4])):
                bundle, outcomes, is_spent = worker.bundle(Events()), [], False
                elements = [chance.randrange(50) for _ in range(chance.choice([1, 3, 20, 60]))]
                stops_at = chance.randrange(60) if self._abandons and chance.random() < 0.5 else None
                try:
                    for place, one in enumerate(elements[:stops_at]):
                        outcomes += bundle.add((one % 3, one) if self.has_keys else one, place)
                    if stops_at is None:
                        outcomes.extend(bundle.finish())
                except BudgetError:
                    is_spent = True
                self.bundles.append((elements, outcomes, is_spent, stops_at is not None))

    def check(self):
        came = Counter()
        for elements, outcomes, is_spent, is_abandoned in self.bundles:
            tags = Counter(tag for outcome in outcomes for tag in self._checked(outcome, elements))
            assert all(count == 1 for count in tags.values()), "doubled"
            assert is_spent or is_abandoned or len(tags) == len(elements), "lost"
            came.update(elements[tag] for tag in tags)
        if not any(is_abandoned for *_, is_abandoned in self.bundles):
            for script in self.scripts:
                assert not script.returned - came, "paid for, and lost"

    def _checked(self, outcome, elements):
        """The outcome's tags, if it is one that a model gave."""
        if isinstance(outcome, Failure):
            assert outcome.element == self._element(elements[outcome.tag])
            return [outcome.tag]
        for tag, value in zip(outcome.tags, getattr(outcome, "values", outcome.tags), strict=True):
            if isinstance(outcome, Skipped):
                assert any(script.fate([elements[tag]], 0) for script in self.scripts)
            else:
                name, one = value[1] if self.has_keys else value
                assert one == elements[tag]
                assert name in {script.name for script in self.scripts}
        return outcome.tags

    def _element(self, one):
        return (one % 3, one) if self.has_keys else one


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_random_runs_lose_and_double_nothing(first, tmp_path, monkeypatch):
    monkeypatch.setattr(asyncio, "new_event_loop", FastLoop)
    monkeypatch.setattr(endpoints, "_board_of", lambda name: None)
    for seed in range(first, first + 8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        scene = Scene(seed, folder)
        try:
            scene.play()
            scene.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
