"""Bundles in this process, with any batching, keys, faults and threads: each element has the outcome it deserves."""

from __future__ import annotations

import math
import threading
from collections import Counter
from contextlib import closing
from itertools import cycle
from typing import Any, NamedTuple

from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

from headrace import SKIP, BatchingConfig, Failure, KeyedModelHandler, KeyModelMapping, ModelHandler, RetryConfig, Stage
from headrace.core.errors import ConfigurationError
from headrace.core.result import Skipped
from headrace.runtime.observers import FanOut
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker
from headrace.testing import FakeClock
from toys import Always

ROUND = 400
MODELS = 3
PASSING = "passing"
SKIPS = "skips "


class Row(NamedTuple):
    """An element, and what becomes of it."""

    number: int
    size: int = 1
    fault: str = ""
    """What fails: an operation (``preprocessing 0``), its size, or the first call with it (``PASSING``); behind
    ``SKIPS`` the operation that skips it."""


class Refused(Exception):
    """What a fault raises."""


class Refusing:
    """A function for pre- or postprocessing that refuses some rows, skips some, and changes no other."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def __call__(self, row: Any) -> Any:
        fault = (row[1] if isinstance(row, tuple) and not isinstance(row, Row) else row).fault
        if fault == self._fault:
            raise Refused(fault)
        return SKIP if fault == SKIPS + self._fault else row


def size_of(row: Row) -> float:
    """A weight, or a length."""
    if row.fault == "size":
        raise Refused("size")
    return math.nan if row.fault == "no size" else row.size


def size_of_pair(pair: tuple[Any, Row]) -> float:
    return size_of(pair[1])


class Watching(ModelHandler):
    """Hands back its rows, skips some; notes how large its batches are, and has room for some rows only.

    Args:
        room: a batch of more rows runs out of memory.
        lazy: whether it answers with a generator.
    """

    def __init__(self, room: int, lazy: bool, **options: Any) -> None:
        super().__init__(**options)
        self._room, self._lazy = room, lazy
        self._seen: set[int] = set()

    def load_model(self) -> str:
        return "model"

    def run_inference(self, batch, model, inference_args=None):
        if len(batch) > self._room:
            raise MemoryError(f"{len(batch)} rows")
        answers = self._answers(list(batch))
        return answers if self._lazy else list(answers)

    def _answers(self, rows):
        for row in rows:
            if row.fault == "inference 0":
                raise Refused(row.fault)
            if row.fault == PASSING and row.number not in self._seen:
                self._seen.add(row.number)
                raise ConnectionError("lost")
            yield SKIP if row.fault == SKIPS + "inference 0" else row


class Case(NamedTuple):
    """What is run, and with what."""

    options: dict[str, Any]
    kind: str
    room: int
    lazy: bool
    before: int
    after: int
    limit: int | None
    beside: list[bool]
    threads: list[list[list[Row]]]
    """The bundles of each thread."""


@st.composite
def cases(draw: Any) -> Case:
    """Any at all; what does not go together is refused at construction, which is not of interest here."""
    kind = draw(st.sampled_from(["plain", "plain", "keyed", "routed"]))
    smallest = draw(st.integers(1, 5))
    largest = draw(st.one_of(st.just(smallest), st.integers(smallest, 20), st.just(10_000)))
    options: dict[str, Any] = {"min_batch_size": smallest, "max_batch_size": largest}
    options |= draw(st.sampled_from([{}, {}, {"element_size_fn": size_of}, {"length_fn": size_of}, {"both": size_of}]))
    if "both" in options:
        options |= {"element_size_fn": options.pop("both"), "max_batch_weight": draw(st.integers(1, 40))}
    if "length_fn" in options:
        options |= draw(st.sampled_from([{}, {"bucket_boundaries": [2, 5]}, {"max_batch_weight": 20}]))
    options |= draw(st.sampled_from([{}, {}, {"lookahead_bytes": 2000}, {"lookahead": 4}]))
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    operations = ["inference 0", *(f"preprocessing {n}" for n in range(before))]
    operations += [f"postprocessing {n}" for n in range(after)]
    faults = [*operations, *(SKIPS + operation for operation in operations), "inference 0", PASSING]
    faults += ["size", "no size"] * bool(options.keys() & {"element_size_fn", "length_fn"})
    bad = draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1]))
    numbers = iter(range(10**6))
    row = st.builds(
        lambda size, fault, chance: Row(next(numbers), size, fault if chance < bad else ""),
        st.integers(0, 12),
        st.sampled_from(faults),
        st.floats(0, 1),
    )
    threads = draw(st.lists(st.lists(st.lists(row, max_size=30), min_size=1, max_size=3), min_size=1, max_size=2))
    return Case(
        options,
        kind,
        draw(st.sampled_from([10_000, 10_000, 3, 7])),
        draw(st.booleans()),
        before,
        after,
        draw(st.sampled_from([None, 1, 2])),
        draw(st.lists(st.booleans(), max_size=3)),
        threads,
    )


class Sometimes(Always):
    """Has every so manieth batch run on the bundle's own thread."""

    def __init__(self, beside: list[bool]) -> None:
        self._beside = cycle(beside)

    def next_in_background(self) -> bool:
        return next(self._beside)

    def record_inline(self, size: int, call: float, whole: float) -> None:
        pass


def run(seed_of_round: int, cases_of_round: int) -> None:

    @seed(seed_of_round)
    @settings(max_examples=cases_of_round, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def check(case: Case) -> None:
        check_one(case)

    check()


def check_one(case: Case) -> None:
    try:
        spec = catching(prepare(handler_of(case), request_of(case)), Exception)
    except ConfigurationError:
        assume(False)
    outcomes: list[Any] = []
    errors: list[BaseException] = []
    threads = [
        threading.Thread(target=run_thread, args=(spec, case, n, outcomes, errors)) for n in range(len(case.threads))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    assert errors == []
    rows = [row for bundles in case.threads for bundle in bundles for row in bundle]
    assert_exact(case, rows, outcomes)


def handler_of(case: Case) -> Any:
    handler: Any = Watching(case.room, case.lazy)
    if case.kind == "keyed":
        handler = KeyedModelHandler(handler)
    if case.kind == "routed":
        mappings = [KeyModelMapping([n], Watching(case.room, case.lazy)) for n in range(MODELS)]
        handler = KeyedModelHandler(mappings, max_models_per_worker_hint=case.limit)
    for n in reversed(range(case.before)):
        handler = handler.with_preprocess_fn(Refusing(f"preprocessing {n}"))
    for n in range(case.after):
        handler = handler.with_postprocess_fn(Refusing(f"postprocessing {n}"))
    return handler


def request_of(case: Case) -> InferenceRequest:
    """What is asked for; with keys, sizes are of pairs."""
    functions = (
        {} if case.kind == "plain" else {name: size_of_pair for name, one in case.options.items() if one is size_of}
    )
    batching = BatchingConfig(**{**case.options, **functions})
    return InferenceRequest(batching=batching, retry=RetryConfig(timeout_secs=1e6), clock=FakeClock())


def run_thread(spec: Any, case: Case, which: int, outcomes: list[Any], errors: list[BaseException]) -> None:
    try:
        with closing(Worker(spec)) as worker:
            for rows in case.threads[which]:
                if case.beside:  # some batches are on the second thread
                    worker._background.policy = Sometimes(case.beside)
                bundle = worker.bundle(FanOut())
                for row in rows:
                    outcomes += bundle.add(row if case.kind == "plain" else (row.number % MODELS, row), row.number)
                outcomes += bundle.finish()
    except BaseException as error:
        errors.append(error)


def assert_exact(case: Case, rows: list[Row], outcomes: list[Any]) -> None:
    """Each row came out once: as itself, or as the failure that it deserves, or skipped where it is to be."""
    good, left, bad = {}, {}, {}
    count: Counter[int] = Counter()
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            bad[outcome.tag] = (outcome.stage.value, outcome.index, type(outcome.error).__name__)
            count[outcome.tag] += 1
            continue
        count.update(outcome.tags)
        if isinstance(outcome, Skipped):
            where = f"{outcome.stage.value} {outcome.index}"
            left.update((tag, (where, given)) for tag, given in zip(outcome.tags, outcome.elements, strict=True))
        else:
            good.update(zip(outcome.tags, outcome.values, strict=True))
    assert count == Counter(row.number for row in rows)
    as_given = {row.number: row if case.kind == "plain" else (row.number % MODELS, row) for row in rows}
    skipped = {row.number: row.fault.removeprefix(SKIPS) for row in rows if row.fault.startswith(SKIPS)}
    assert left == {number: (where, as_given[number]) for number, where in skipped.items()}
    failing = [row for row in rows if row.fault not in ("", PASSING) and row.number not in skipped]
    expected = {row.number: deserved(row) for row in failing}
    assert {number: failure for number, failure in bad.items() if number not in expected} == {}, "good rows lost"
    assert bad == expected
    assert good == {number: given for number, given in as_given.items() if number not in {**expected, **skipped}}


def deserved(row: Row) -> tuple[str, int, str]:
    if row.fault in ("size", "no size"):
        return Stage.INFERENCE.value, 0, "Refused" if row.fault == "size" else "ValueError"
    stage, index = row.fault.split()
    return stage, int(index), "Refused"
