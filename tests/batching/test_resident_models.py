"""Where not all models fit: who goes is bounded, costs few loads, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.resident_models import QueueState, ResidentModels, flush_order, queue_to_empty

names = st.sampled_from("abcdefg")


def seated(*taken, count=2):
    resident = ResidentModels(count)
    for name in taken:
        resident.take(name)
    return resident


def test_a_free_seat_is_anybodys():
    resident = seated("a")
    assert "b" in resident
    assert resident.eviction_candidate("b") is None
    resident.take("b")
    assert "c" not in resident
    assert resident.eviction_candidate("c") == "a"


def test_without_a_count_everybody_has_one():
    resident = seated("a", "b", "c", count=None)
    assert "z" in resident
    assert not resident.is_limited


@given(st.lists(names, max_size=40), st.integers(1, 4))
def test_seats_are_those_of_the_last_that_left(takes, count):
    resident = seated(*takes, count=count)
    last = list(dict.fromkeys(reversed(takes)))[:count]
    assert {name for name in "abcdefg" if name in resident} == (set(last) if len(last) == count else set("abcdefg"))


def test_memory_may_have_room_for_fewer():
    resident = seated("a", "b", count=None)
    resident.limit_to(1)
    assert ("a" in resident, "b" in resident, resident.is_limited) == (False, True, True)
    resident.limit_to(5)
    assert "c" not in resident


@given(st.dictionaries(names, st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1), st.lists(names))
def test_whoever_leaves_has_something(figures, takes):
    queues = {name: QueueState(nbytes, 1 + nbytes, passed) for name, (nbytes, passed) in figures.items()}
    resident = seated(*takes)
    chosen = queue_to_empty(queues, resident)
    standing = [name for name in queues if name not in resident]
    half = sum(queue.nbytes for queue in queues.values()) / 2
    if chosen in resident:
        assert not standing or queues[chosen].nbytes >= half
    elif queues[chosen].times_skipped < 2 * len(queues):
        assert queues[chosen].nbytes == max(queues[name].nbytes for name in standing)
    else:
        assert queues[chosen].times_skipped == max(queues[name].times_skipped for name in standing)


@given(st.lists(st.tuples(names, st.integers(1, 9)), min_size=60, max_size=300), st.integers(1, 3))
def test_nobody_waits_for_ever(arrivals, count):
    """A queue that has something sees at most 3 n others go that had no seat, of n."""
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


def test_everything_leaves_those_in_memory_first_and_the_largest_last():
    assert flush_order({"a": 9, "b": 1, "c": 5, "d": 2}, seated("d", "b")) == ["b", "d", "c", "a"]
    assert flush_order({"a": 9, "b": 1, "c": 5}, seated("c", count=2)) == ["c", "b", "a"]  # free seats are no models
