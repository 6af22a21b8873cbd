"""Finds the elements that kill or hang their model host, so that the rest of the batch survives.

A *death* may have an outside cause: the batch is repeated once as it is, unless memory ran out. If the host dies
again in inference, the batch is halved; a half whose host dies is halved at once, down to single elements. A single
element is repeated once, since the deaths of its group prove nothing about it, and is then fatal. If hosts die
twice in one element's pre- or postprocessing, it is fatal for that operation, and the others stay together.

A *timeout* is expensive: a group that overruns in inference is cut into ``parts``; an element that overruns
alone, or in its own operation, is fatal at once. If a group that overran has no such element, it was too large:
other groups of its size are then cut into parts of the size that succeeded.

Fatal elements are tried once more with their failure injected, so that the host makes the failure record from the
right value. An element that is lost even so is given up, after a death only the second time. ``MAX_TIMEOUTS``
ends the search early, and so does ``LETHAL_IN_A_ROW``, unless one of ``LETHAL_PROBES`` elements, spread over the
rest and tried alone, survives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from headrace.failures.fatal_search import (
    LETHAL_PROBES,
    FatalSearch,
    InjectedFailure,
    LostBatch,
    Suspects,
    TriedPart,
    finished,
    recut,
)

ResultT = TypeVar("ResultT")

_FEW = 32
"""Up to this many elements are tried one by one after a timeout, however long that takes."""

Attempt = Callable[[Sequence[int], Mapping[int, InjectedFailure]], ResultT | LostBatch]
"""Runs the elements at these positions together; those with an injected failure fail as it says."""


def parts_after_timeout(count: int, call_secs: float, timeout_secs: float) -> int:
    """Number of parts into which to cut a group whose inference timed out.

    One by one costs a call for each element; parts cost one more timeout if an element hangs. So elements go one by
    one if all those calls take no longer than a timeout; else there are about as many parts as elements in each.

    Args:
        count: number of elements, at least 2.
        call_secs: the shortest time of a model call, in seconds; infinite: unknown.
        timeout_secs: the time limit, in seconds.
    """
    is_quick = count <= _FEW or count * call_secs <= timeout_secs
    return count if is_quick else math.ceil(math.sqrt(count))


def isolate_fatal(
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    gives_up_single: bool = False,
    parts: Callable[[int], int] = lambda count: count,
    too_large: Callable[[Sequence[int]], None] = lambda _: None,
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """Tries a batch whose host was lost again, until its fatal elements are known and the others answered.

    Args:
        positions: distinct positions in the batch of the elements that were tried together, at least one.
        first: how that attempt was lost.
        attempt: runs some of them, in a new host if the last was lost; its answer covers all of them.
        gives_up_single: whether a single element that is fatal in inference is given up at once. Right if there is no
            preprocessing: then the caller already has the value that inference got.
        parts: number of parts into which to cut a group of that size whose inference timed out.
        too_large: called with elements that timed out together, although each was answered afterwards.

    Yields:
        (part, answer) as they come; the parts partition ``positions``. If the answer is a LostBatch, all elements of
        the part fail with its error. n elements cost at most 6n attempts, whatever attempts return; one that is lethal
        in inference costs at most 2 ceil(log2 n) + 3.
    """
    left, lost = positions, first
    # Each round searches until it has met too many lethal elements in a row. Probes then decide: if one survives, a new
    # round searches the rest; otherwise the rest fails.
    while True:
        left, lost = yield from _isolate_fatal(left, lost, attempt, FatalSearch(gives_up_single, parts), too_large)
        if not left:
            return
        probes = sorted({(2 * number + 1) * len(left) // (2 * LETHAL_PROBES) for number in range(LETHAL_PROBES)})
        left, is_hopeless = yield from _probe(probes, left, attempt, lambda answer: isinstance(answer, LostBatch))
        if not left:
            return
        answer = lost if is_hopeless else attempt(left, {})
        if is_hopeless or not isinstance(answer, LostBatch):
            yield left, answer
            return
        lost = answer


def _isolate_fatal(
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    trial: FatalSearch,
    too_large: Callable[[Sequence[int]], None],
) -> Generator[tuple[Sequence[int], ResultT | LostBatch], None, tuple[Sequence[int], LostBatch]]:
    """Like ``isolate_fatal`` until too many in a row were lethal; returns the elements left, and the last loss."""
    waiting: list[TriedPart] = []  # a stack, so that the parts of a group are settled before the next group
    groups: list[Suspects] = []  # each contains the next one
    part = TriedPart(positions, repeatable=True)
    answer: ResultT | LostBatch = first
    while True:
        settled = part.positions
        if isinstance(answer, LostBatch):
            settled, again = trial.note_loss(part, answer)
            if trial.is_over:
                left = [position for one in (part, *reversed(waiting)) for position in one.positions]
                # After too many timeouts all fail; after too many deaths only the fatal ones, and probes try the rest.
                known = set(left) if trial.is_late else {*settled, *trial.fatal}
                yield [position for position in left if position in known], answer
                return [position for position in left if position not in known], answer
            if answer.timed_out and len(again) > 1:
                groups.append(Suspects(part.positions, len(again[0].positions), len(part.positions), trial.overran))
            waiting.extend(reversed(again))
        else:
            trial.clear(part.positions)
        if settled:
            yield settled, answer
            for group in finished(groups, len(settled)):
                if group.overran == trial.overran:  # all answered without another timeout: it was merely too large
                    too_large(group.positions)
                    waiting = [piece for one in waiting for piece in reversed(recut(one, group))]
        if not waiting:
            return (), first
        part = waiting.pop()
        answer = attempt(part.positions, trial.injected_among(part.positions))


Search = Callable[[Sequence[int], LostBatch], Iterator[tuple[Sequence[int], ResultT | LostBatch]]]
"""``isolate_fatal`` with all but its first two arguments bound."""


def probe_hosts(
    places: Iterable[int],
    positions: Sequence[int],
    first: LostBatch,
    attempt: Attempt[ResultT],
    *,
    search: Search[ResultT],
    is_hopeless: Callable[[], bool],
) -> Iterator[tuple[Sequence[int], ResultT | LostBatch]]:
    """While everything has been failing: tries some elements alone, and the others only if that gives hope.

    Args:
        places: indices into ``positions`` of the elements to try alone.
        positions: distinct positions in the batch of the elements that were tried together.
        first: how that attempt was lost; without hope the other elements fail with its error.
        attempt: runs some of them, in a new host if the last was lost.
        search: searches the other elements if they are lost again.
        is_hopeless: asked after each element that is tried alone, once the caller has its answer.

    Yields:
        (part, answer), as ``isolate_fatal`` does.
    """
    others, is_dead = yield from _probe(places, positions, attempt, lambda _: is_hopeless())
    if not others:
        return
    answer = first if is_dead else attempt(others, {})
    if isinstance(answer, LostBatch) and answer is not first:
        yield from search(others, answer)
    else:
        yield others, answer


def _probe(
    places: Iterable[int],
    positions: Sequence[int],
    attempt: Attempt[ResultT],
    is_hopeless: Callable[[ResultT | LostBatch], bool],
) -> Generator[tuple[Sequence[int], ResultT | LostBatch], None, tuple[list[int], bool]]:
    """Tries elements alone until one gives hope; returns the others, and whether it is still hopeless.

    With hope, elements whose host died are tried once more, since the death may have had an outside cause.
    """
    others = list(positions)
    died: list[tuple[Sequence[int], LostBatch]] = []
    is_dead = True
    for place in places:
        alone = [positions[place]]
        others.remove(positions[place])
        answer = attempt(alone, {})
        if isinstance(answer, LostBatch) and not answer.timed_out:
            died.append((alone, answer))
        else:
            yield alone, answer
        is_dead = is_hopeless(answer)
        if not is_dead:
            break
    yield from ((alone, lost if is_dead else attempt(alone, {})) for alone, lost in died)
    return others, is_dead
