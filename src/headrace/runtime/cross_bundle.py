"""Bundles that are open side by side in a process share what they leave over, so that batches are full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch
from headrace.batching.leftovers import Leftover, leftovers_for
from headrace.batching.size import SizeController
from headrace.core.clock import Clock
from headrace.core.config import BatchingConfig
from headrace.core.errors import PredictionCountError
from headrace.core.result import Failure, Outcome, Predictions, Skipped

Run = Callable[[Any, Batch], Sequence[Outcome]]
"""Runs a batch of the model of a name."""
Wait = Callable[[threading.Condition, float | None], Any]
"""Waits for a condition, but no longer than so many seconds."""


class _Work(NamedTuple):
    name: Any
    parts: list[Leftover]


class CrossBundleBatching:
    """What the bundles of one session have in common; safe to use from all their threads.

    A bundle forms batches of its own while its elements come. What is left over when they end waits for what other
    bundles leave over, but only while others are open whose elements have not ended, and no longer than asked. The
    thread of whichever bundle completes a batch, or is the first to find that it must not wait any longer, runs it;
    each bundle gets the outcomes of its own elements.

    Args:
        config: of the session.
        sizes: say for each model how large its batches should be.
        clock: measures the wait.
        wait: what waits, for tests.
        own: limits of models for which those of ``config`` do not hold.
    """

    def __init__(
        self,
        config: BatchingConfig,
        sizes: Mapping[Any, SizeController],
        clock: Clock,
        wait: Wait = threading.Condition.wait,
        own: Mapping[Any, BatchingConfig] | None = None,
    ) -> None:
        self._patience_ns = int((config.max_batch_duration_secs or 0) * 1e9)
        self._clock = clock
        self._wait = wait
        own = own or {}
        self._pools = {name: leftovers_for(own.get(name, config), controller) for name, controller in sizes.items()}
        self._changed = threading.Condition()
        self._open: set[BundleSlot] = set()
        """Those whose elements have not ended."""

    def join(self) -> BundleSlot:
        """For a bundle that begins."""
        slot = BundleSlot(self)
        with self._changed:
            self._open.add(slot)
        return slot

    def leave(self, slot: BundleSlot) -> None:
        """A bundle has ended, or is given up: what it has waiting is dropped, and nobody waits for it."""
        with self._changed:
            self._end(slot)
            if slot.outstanding:
                for pool in self._pools.values():
                    pool.forget(slot)

    def hand_in(self, slot: BundleSlot, leftovers: Sequence[tuple[Any, Batch]]) -> bool:
        """The elements of a bundle have ended; these are left over. False: there is nobody to share them with."""
        with self._changed:
            self._end(slot)
            if not self._open and all(pool.due is None for pool in self._pools.values()):
                return False
            due = self._clock.time_ns() + self._patience_ns
            for name, batch in leftovers:
                self._pools[name].add(Leftover(slot, batch, due))
                slot.outstanding += len(batch.elements)
            return True

    def next(self, slot: BundleSlot) -> _Work | None:
        """Work for the bundle's thread, waited for; None: the bundle has all its outcomes.

        Raises:
            PredictionCountError: a batch with its elements in it was answered wrongly.
        """
        with self._changed:
            while True:
                if slot.error is not None:
                    raise slot.error
                if slot.alone:
                    return slot.alone.pop()
                if not slot.outstanding:
                    return None
                now = self._clock.time_ns()
                for name, pool in self._pools.items():
                    if pool.is_due(now, others_may_come=bool(self._open)):
                        return _Work(name, pool.take())
                dues = [pool.due for pool in self._pools.values() if pool.due is not None]
                self._wait(self._changed, (min(dues) - now) / 1e9 if dues else None)

    def deliver(self, work: _Work, outcomes: Iterable[tuple[BundleSlot, Outcome]]) -> None:
        """Gives each bundle its part of what has come out."""
        with self._changed:
            for owner, outcome in outcomes:
                owner.outcomes.append(outcome)
            for part in work.parts:
                part.owner.outstanding -= len(part.batch.elements)
            self._changed.notify_all()

    def part(self, work: _Work) -> None:
        """A shared batch has failed: each bundle runs its own part, so that none fails for another one's elements."""
        with self._changed:
            for part in work.parts:
                part.owner.alone.append(_Work(work.name, [part]))
            self._changed.notify_all()

    def refuse(self, work: _Work, error: PredictionCountError) -> None:
        """The handler has answered a shared batch wrongly: each bundle fails, since alone its part might pass."""
        with self._changed:
            for part in work.parts:
                part.owner.error = PredictionCountError(*error.args)  # which several threads raise
            self._changed.notify_all()

    def _end(self, slot: BundleSlot) -> None:
        self._open.discard(slot)
        if not self._open:
            self._changed.notify_all()


class BundleSlot:
    """One bundle's part in a ``CrossBundleBatching``; for the bundle's thread, its attributes under the lock."""

    def __init__(self, cross_bundle: CrossBundleBatching) -> None:
        self._sharing = cross_bundle
        self.outstanding = 0
        """How many of its elements have no outcome."""
        self.outcomes: list[Outcome] = []
        self.alone: list[_Work] = []
        """What its own thread is to run."""
        self.error: PredictionCountError | None = None
        """What its own thread is to raise."""

    def finish(self, leftovers: Iterable[tuple[Any, Any]], run: Run) -> list[Outcome]:
        """Gives what is left over to be run, with what other bundles leave over; returns when all has come out.

        Raises:
            Exception: ``run`` does so for a batch of this bundle's elements alone.
        """
        cross_bundle = self._sharing
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
        """To be called for a bundle that is given up."""
        self._sharing.leave(self)

    def _do(self, work: _Work, run: Run) -> None:
        if all(part.owner is self for part in work.parts):
            tags = [tag for part in work.parts for tag in part.batch.tags]
            self._sharing.deliver(work, [(self, outcome) for outcome in run(work.name, _joined(work, tags))])
            return
        tags = [(part.owner, tag) for part in work.parts for tag in part.batch.tags]
        try:
            outcomes = run(work.name, _joined(work, tags))
        except PredictionCountError as error:
            self._sharing.refuse(work, error)
            raise
        except BaseException as error:
            self._sharing.part(work)
            if not isinstance(error, Exception):
                raise
        else:
            self._sharing.deliver(work, [one for outcome in outcomes for one in _apart(outcome)])


def _joined(work: _Work, tags: list[Any]) -> Batch:
    elements = [element for part in work.parts for element in part.batch.elements]
    weight, useful = (sum(getattr(part.batch, what) for part in work.parts) for what in ("weight", "useful"))
    return Batch(elements, tags, weight, useful)


def _apart(outcome: Outcome) -> Iterable[tuple[BundleSlot, Outcome]]:
    """The parts of an outcome with whose they are, their tags without that."""
    if isinstance(outcome, Failure):
        owner, tag = outcome.tag
        return [(owner, replace(outcome, tag=tag))]
    tags: dict[BundleSlot, list[Any]] = {}
    values: dict[BundleSlot, list[Any]] = {}
    all_values = outcome.elements if isinstance(outcome, Skipped) else outcome.values
    for (owner, tag), value in zip(outcome.tags, all_values, strict=True):
        tags.setdefault(owner, []).append(tag)
        values.setdefault(owner, []).append(value)
    if isinstance(outcome, Skipped):
        return [(owner, replace(outcome, tags=own, elements=values[owner])) for owner, own in tags.items()]
    return [(owner, Predictions(own, values[owner])) for owner, own in tags.items()]
