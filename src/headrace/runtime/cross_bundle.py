"""Fills batches across concurrent bundles: what several bundles have left at their end is batched together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.batching.lookahead import Leftover, leftovers_for
from headrace.batching.size import SizeController
from headrace.core.clock import Clock
from headrace.core.config import BatchingConfig
from headrace.core.errors import PredictionCountError
from headrace.core.result import Failure, Outcome, Predictions, Skipped

Run = Callable[[Any, Batch], Sequence[Outcome]]
"""Runs a batch of the named model."""
Wait = Callable[[threading.Condition, float | None], Any]
"""Waits on a condition, for at most the given number of seconds."""


class _SharedBatch(NamedTuple):
    name: Any
    parts: list[Leftover]


class CrossBundleBatching:
    """Shared state of one session's bundles; thread-safe.

    A bundle batches its own elements as they arrive. At its end, what is left waits for what other bundles leave, but
    only while other bundles are still receiving elements, and at most ``max_batch_duration_secs``. There is no
    dispatcher thread: the bundle whose thread completes a batch, or first finds that the wait is over, runs it for all.
    Each bundle gets the outcomes of its own elements.

    Args:
        own: batching options of single models, in place of ``config``.
    """

    def __init__(
        self,
        config: BatchingConfig,
        sizes: Mapping[Any, SizeController],
        clock: Clock,
        wait: Wait = threading.Condition.wait,
        own: Mapping[Any, BatchingConfig] | None = None,
    ) -> None:
        self._max_wait_ns = int((config.max_batch_duration_secs or 0) * 1e9)
        self._clock = clock
        self._wait = wait
        own = own or {}
        self._pools = {name: leftovers_for(own.get(name, config), controller) for name, controller in sizes.items()}
        self._changed = threading.Condition()
        self._open: set[BundleSlot] = set()

    def join(self) -> BundleSlot:
        """Registers a new bundle."""
        slot = BundleSlot(self)
        with self._changed:
            self._open.add(slot)
        return slot

    def leave(self, slot: BundleSlot) -> None:
        """Unregisters a bundle that ended or was abandoned, and drops its waiting elements."""
        with self._changed:
            self._end(slot)
            if slot.outstanding:
                for pool in self._pools.values():
                    pool.forget(slot)

    def hand_in(self, slot: BundleSlot, leftovers: Sequence[tuple[Any, Batch]]) -> bool:
        """Accepts what a bundle has left at its end; False: nobody can share a batch, the bundle runs these itself."""
        with self._changed:
            self._end(slot)
            if not self._open and all(pool.due is None for pool in self._pools.values()):
                return False
            due = self._clock.time_ns() + self._max_wait_ns
            for name, batch in leftovers:
                self._pools[name].add(Leftover(slot, batch, due))
                slot.outstanding += len(batch.elements)
            return True

    def next(self, slot: BundleSlot) -> _SharedBatch | None:
        """Blocks until this bundle's thread has a batch to run; None: all of the bundle's outcomes are there.

        Raises:
            PredictionCountError: a batch with elements of this bundle got the wrong number of predictions.
        """
        with self._changed:
            while True:
                # Any waiting thread may run a due batch, whichever bundles its elements come from. A thread whose last
                # outcome comes from another one leaves through ``not outstanding``. All wait on one condition, until
                # the next deadline or a change.
                if slot.error is not None:
                    raise slot.error
                if slot.alone:
                    return slot.alone.pop()
                if not slot.outstanding:
                    return None
                now = self._clock.time_ns()
                for name, pool in self._pools.items():
                    if pool.is_due(now, others_may_come=bool(self._open)):
                        return _SharedBatch(name, pool.take())
                dues = [pool.due for pool in self._pools.values() if pool.due is not None]
                self._wait(self._changed, (min(dues) - now) / 1e9 if dues else None)

    def deliver(
        self, work: _SharedBatch, outcomes: Iterable[tuple[BundleSlot, Outcome]], rest: Iterable[Leftover] = ()
    ) -> None:
        """Hands each bundle its outcomes, and the ``rest`` of its elements, which have none, to run them itself."""
        with self._changed:
            for owner, outcome in outcomes:
                owner.outcomes.append(outcome)
            for part in work.parts:
                part.owner.outstanding -= len(part.batch.elements)
            for part in rest:
                part.owner.outstanding += len(part.batch.elements)
                part.owner.alone.append(_SharedBatch(work.name, [part]))
            self._changed.notify_all()

    def fail(self, work: _SharedBatch, error: PredictionCountError) -> None:
        """Fails all bundles of a batch with a wrong prediction count: alone, a part might pass by accident."""
        with self._changed:
            for part in work.parts:
                part.owner.error = PredictionCountError(*error.args)  # one instance for each thread that raises it
            self._changed.notify_all()

    def _end(self, slot: BundleSlot) -> None:
        self._open.discard(slot)
        if not self._open:
            self._changed.notify_all()


class BundleSlot:
    """A bundle's place in a ``CrossBundleBatching``: methods are for its own thread, attributes need the lock."""

    def __init__(self, cross_bundle: CrossBundleBatching) -> None:
        self._cross_bundle = cross_bundle
        self.outstanding = 0
        """How many of its waiting elements have no outcome yet."""
        self.outcomes: list[Outcome] = []
        self.alone: list[_SharedBatch] = []
        """Parts of failed shared batches, which the bundle's own thread has to run."""
        self.error: PredictionCountError | None = None

    def finish(self, leftovers: Iterable[tuple[Any, Any]], run: Run) -> list[Outcome]:
        """Runs what is left, together with what other bundles leave; returns once every element has its outcome.

        Raises:
            Exception: ``run`` raised it for a batch of this bundle's elements alone.
        """
        cross_bundle = self._cross_bundle
        try:
            left = list(leftovers)
            if not cross_bundle.hand_in(self, left):
                return [outcome for name, batch in left for outcome in run(name, batch)]
            while (work := cross_bundle.next(self)) is not None:
                self._do(work, run)
            outcomes, self.outcomes = self.outcomes, []
            return outcomes
        finally:
            self.leave()

    def leave(self) -> None:
        """Unregisters the bundle; also for a bundle that is abandoned."""
        self._cross_bundle.leave(self)

    def _do(self, work: _SharedBatch, run: Run) -> None:
        if all(part.owner is self for part in work.parts):
            tags = [tag for part in work.parts for tag in part.batch.tags]
            self._cross_bundle.deliver(work, [(self, outcome) for outcome in run(work.name, _merged(work, tags))])
            return
        owned = [(part.owner, tag) for part in work.parts for tag in part.batch.tags]
        tags = [(*one, place) for place, one in enumerate(owned)]
        try:
            outcomes = run(work.name, _merged(work, tags))
        except PredictionCountError as error:
            self._cross_bundle.fail(work, error)
            raise
        except BaseException as error:
            self._cross_bundle.deliver(work, (), work.parts)  # no element may fail for another bundle's
            if not isinstance(error, Exception):
                raise
            return
        delivered = [one for outcome in outcomes for one in _split_by_bundle(outcome)]
        came = {place for outcome in outcomes for _, _, place in _tags_of(outcome)}
        rest = _without(work, came) if len(came) < len(tags) else []
        self._cross_bundle.deliver(
            work, delivered, rest
        )  # left out, since a budget is spent: each has to find that out


def _merged(work: _SharedBatch, tags: list[Any]) -> Batch:
    elements = [element for part in work.parts for element in part.batch.elements]
    weight, useful = (sum(getattr(part.batch, what) for part in work.parts) for what in ("weight", "useful"))
    return Batch(elements, tags, weight, useful)


def _without(work: _SharedBatch, places: Container[int]) -> list[Leftover]:
    """The parts of a batch without the elements at these places."""
    first, rest = 0, []
    for part in work.parts:
        total = len(part.batch.elements)
        left = [place for place in range(total) if first + place not in places]
        first += total
        if left:
            rest.append(part._replace(batch=part.batch.pick(left)[0]))
    return rest


def _tags_of(outcome: Outcome) -> list[Any]:
    return [outcome.tag] if isinstance(outcome, Failure) else outcome.tags


def _split_by_bundle(outcome: Outcome) -> Iterable[tuple[BundleSlot, Outcome]]:
    """Splits an outcome by bundle; tags lose the bundle, and the place, that they came with."""
    if isinstance(outcome, Failure):
        owner, tag, _ = outcome.tag
        return [(owner, replace(outcome, tag=tag))]
    tags: dict[BundleSlot, list[Any]] = {}
    values: dict[BundleSlot, list[Any]] = {}
    all_values = outcome.elements if isinstance(outcome, Skipped) else outcome.values
    for (owner, tag, _), value in zip(outcome.tags, all_values, strict=True):
        tags.setdefault(owner, []).append(tag)
        values.setdefault(owner, []).append(value)
    if isinstance(outcome, Skipped):
        return [(owner, replace(outcome, tags=own, elements=values[owner])) for owner, own in tags.items()]
    return [(owner, Predictions(own, values[owner])) for owner, own in tags.items()]
