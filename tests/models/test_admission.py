"""Admission case by case: what is loaded, evicted, made to wait or refused."""

from __future__ import annotations

import pytest

from headrace.models.admission import Admit, Evict, Held, Refuse, Wait, admit, format_bytes

GB = 10**9
OLD, MIDDLE, NEW = Held("old", 2 * GB, 0, 1.0), Held("middle", 3 * GB, 0, 2.0), Held("new", 4 * GB, 0, 3.0)
USED = Held("used", 5 * GB, 1, 0.0)
ALL = [NEW, USED, OLD, MIDDLE]


@pytest.mark.parametrize(
    ("need", "loading", "free", "verdict"),
    [
        (3 * GB, [], 4 * GB, Admit()),  # 1 GB stays free
        (3 * GB, [], 4 * GB - 1, Evict(("old",))),
        (3 * GB, [2 * GB], 6 * GB, Admit()),
        (3 * GB, [2 * GB, 1 * GB], 6 * GB, Evict(("old",))),
        (6 * GB, [], 2 * GB, Evict(("old", "middle"))),
        (6 * GB, [], 1 * GB, Evict(("old", "new"))),  # not all three: with the new one, the middle one need not go
        (3 * GB, [], 0, Evict(("old", "middle"))),
        (11 * GB, [], 3 * GB, Evict(("old", "middle", "new"))),
        (11 * GB, [2 * GB], 3 * GB, Wait()),
        (None, [], 2 * GB, Admit()),
        (None, [], 0, Evict(("old",))),
        (None, [1], 9 * GB, Wait()),
        (1, [None], 9 * GB, Wait()),
        (3 * GB, [None, 2 * GB], 0, Wait()),
        (0, [], 0, Admit()),
    ],
)
def test_verdicts(need, loading, free, verdict):
    assert admit(need, ALL, loading, free, 64 * GB) == verdict


def test_models_last_used_together_are_evicted_by_name():
    twins = [Held("b", GB, 0, 1.0), Held("a", GB, 0, 1.0)]
    assert admit(GB, twins, [], GB, 64 * GB) == Evict(("a",))


def test_small_old_models_stay_if_only_a_large_one_makes_room():
    assert admit(4 * GB, [OLD, NEW], [], GB, 64 * GB) == Evict(("new",))


def test_a_model_of_unknown_size_is_tried_when_nothing_is_free():
    assert admit(None, [USED], [], 0, 64 * GB) == Admit()


@pytest.mark.parametrize("loading", [[], [GB], [None]])
def test_a_model_larger_than_memory_is_refused_at_once(loading):
    assert admit(64 * GB, [], loading, 64 * GB, 64 * GB) == Refuse(
        "loading it takes at least 64.0 GB, and the memory that this process may use is 64.0 GB in all, of which "
        "1.0 GB stay free. Give the machine or the container more memory, or use a smaller model."
    )


def test_a_model_that_does_not_fit_now_is_refused_with_the_figures():
    small = Held("small", 200 * 10**6, 0, 0.0)
    assert admit(3 * GB, [USED, small], [], 3_500 * 10**6, 8 * GB) == Refuse(
        "loading it takes at least 3.0 GB, 3.5 GB of 8.0 GB are free, of which 800 MB stay so; 1 model in use hold "
        "5.0 GB, unused ones 200 MB that would not suffice. Give the machine or the container more memory, or use "
        "fewer models at a time."
    )


def test_admission_waits_for_models_being_unloaded():
    assert admit(3 * GB, [OLD], [], GB, 64 * GB, leaving=3 * GB) == Wait()
    assert admit(3 * GB, [OLD], [], GB, 64 * GB, leaving=GB) == Evict(("old",))
    assert admit(9 * GB, [OLD], [], GB, 64 * GB, leaving=GB) == Wait()
    assert isinstance(admit(9 * GB, [OLD], [], GB, 64 * GB), Refuse)


def test_small_models_are_not_refused_for_lack_of_a_large_margin():
    assert admit(10**7, [], [], 2 * 10**7, 64 * GB) == Admit()
    assert isinstance(admit(10**7, [], [], 2 * 10**7 - 1, 64 * GB), Refuse)


def test_available_memory_never_exceeds_the_total():
    assert isinstance(admit(8 * GB, [USED], [], 99 * GB, 10 * GB), Admit)
    assert admit(8 * GB, [USED], [GB + 1], 99 * GB, 10 * GB) == Wait()


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 MB"), (999 * 10**6, "999 MB"), (GB, "1.0 GB"), (2_950 * 10**6, "3.0 GB")]
)
def test_sizes_are_shown_in_readable_units(nbytes, text):
    assert format_bytes(nbytes) == text
