"""Resident models when not all fit: evictions are bounded, cost few loads, and no queue starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.resident_models import QueueState, ResidentModels, flush_order, queue_to_empty

names = st.sampled_from("abcdefg")


def resident_of(*taken, count=2):
    resident = ResidentModels(count)
    for name in taken:
        resident.take(name)
    return resident


@given(st.lists(names, max_size=40), st.integers(1, 4))
def test_resident_models_are_those_whose_batches_left_last(takes, count):
    resident = resident_of(*takes, count=count)
    last = list(dict.fromkeys(reversed(takes)))[:count]
    assert {name for name in "abcdefg" if name in resident} == (set(last) if len(last) == count else set("abcdefg"))


def test_memory_may_have_room_for_fewer():
    resident = resident_of("a", "b", count=None)
    resident.limit_to(1)
    assert ("a" in resident, "b" in resident, resident.is_limited) == (False, True, True)
    resident.limit_to(5)
    assert "c" not in resident


@given(st.dictionaries(names, st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1), st.lists(names))
def test_the_queue_to_empty_has_elements(figures, takes):
    queues = {name: QueueState(nbytes, 1 + nbytes, passed) for name, (nbytes, passed) in figures.items()}
    resident = resident_of(*takes)
    chosen = queue_to_empty(queues, resident)
    waiting = [name for name in queues if name not in resident]
    half = sum(queue.nbytes for queue in queues.values()) / 2
    if chosen in resident:
        assert not waiting or queues[chosen].nbytes >= half
    elif queues[chosen].times_skipped < 2 * len(queues):
        assert queues[chosen].nbytes == max(queues[name].nbytes for name in waiting)
    else:
        assert queues[chosen].times_skipped == max(queues[name].times_skipped for name in waiting)


@given(st.lists(st.tuples(names, st.integers(1, 9)), min_size=60, max_size=300), st.integers(1, 3))
def test_no_queue_waits_for_ever(arrivals, count):
    """With n queues, a non-empty one waits for at most 3 n others whose model was not in memory."""
    resident, nbytes, passed = ResidentModels(count), dict.fromkeys("abcdefg", 0), dict.fromkeys("abcdefg", 0)
    for name, more in arrivals:
        nbytes[name] += more
        if sum(nbytes.values()) >= 20:
            queues = {one: QueueState(nbytes[one], int(nbytes[one] > 0), passed[one]) for one in nbytes}
            chosen = queue_to_empty(queues, resident)
            if chosen not in resident:
                passed = {one: passed[one] + (nbytes[one] > 0) for one in passed}
            assert nbytes[chosen] > 0
            nbytes[chosen] = passed[chosen] = 0
            resident.take(chosen)
        assert max(passed.values()) <= 3 * len(passed)


def test_flush_order_is_models_in_memory_first_and_the_largest_last():
    assert flush_order({"a": 9, "b": 1, "c": 5, "d": 2}, resident_of("d", "b")) == ["b", "d", "c", "a"]
    assert flush_order({"a": 9, "b": 1, "c": 5}, resident_of("c", count=2)) == ["c", "b", "a"]  # room is no model
