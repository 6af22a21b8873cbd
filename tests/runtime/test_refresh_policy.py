"""Whatever the order of updates, loads and failures: one version serves at a time, and the last good one wins."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.plan import ONLY, Refreshed
from headrace.runtime.spec import ModelUpdate
from headrace.runtime.versions import RefreshPolicy, Version

NOW = 1000.0
LATER = NOW + 1e9


def to(path, *keys):
    return {key: Refreshed(path, path) for key in keys or (ONLY,)}


def wanting(*paths, policy=None):
    policy = policy or RefreshPolicy()
    for moment, path in enumerate(paths):
        policy.request(ModelUpdate(moment, path), to(path))
    return policy


def load_all(policy, broken=(), now=NOW):
    while (version := policy.next(now)) is not None:
        if any(one.path in broken for _, one in version.models):
            policy.failed(now, 0)
        else:
            policy.loaded()
    return str(policy.serving)


def test_updates_are_ordered_by_timestamp_unless_threads_wait():
    for waits, expected in ((False, "new"), (True, "old")):
        policy = RefreshPolicy(waits=waits)
        policy.request(ModelUpdate(5, "new"), to("new"))
        policy.request(ModelUpdate(3, "old"), to("old"))
        assert load_all(policy) == expected


def test_failed_load_is_retried_ever_more_rarely():
    policy, now = wanting("broken"), NOW
    pauses = []
    for _ in range(9):
        assert policy.next(now) is not None
        policy.failed(now, 0)
        assert not policy.is_due(now)
        began = now
        while not policy.is_due(now):
            now += 30
        pauses.append(now - began)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    policy.next(now)
    policy.failed(now, 1000)
    assert not policy.is_due(now + 9999)


def test_changes_of_other_keys_are_kept():
    policy = RefreshPolicy()
    policy.request(ModelUpdate(1, 1), to("one", "k1"))
    policy.request(ModelUpdate(2, 2), to("two", "k2"))
    policy.request(ModelUpdate(3, 3), to("three", "k2"))
    load_all(policy)
    assert policy.serving == Version().after(to("one", "k1")).after(to("three", "k2"))


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_key_whose_model_fails_does_not_hold_up_others(meanwhile):
    policy = RefreshPolicy()
    policy.request(ModelUpdate(1, 1), to("broken", "k1"))
    version = policy.next(NOW) if meanwhile else load_all(policy, {"broken"})
    policy.request(ModelUpdate(2, 2), {**to("broken", "k1"), **to("good", "k2")})
    if meanwhile:
        assert str(version) == "broken"
        policy.failed(NOW, 0)
    assert load_all(policy, {"broken"}) == "good"
    assert not policy.is_due(NOW + 59)
    assert load_all(copy(policy), now=NOW + 61) == "broken, good"
    policy.request(ModelUpdate(3, 3), to("mended", "k1"))
    assert load_all(policy) == "good, mended"


def test_what_is_being_loaded_stays_wanted_by_a_successor():
    policy = wanting("a")
    assert str(policy.next(NOW)) == "a"
    successor = copy(policy)
    policy.loaded()
    assert (str(policy.serving), load_all(successor)) == ("a", "a")


def test_what_failed_before_does_not_replace_a_newer_first_model():
    policy = wanting("older")
    load_all(policy, {"older"})
    update, change = ModelUpdate(9, "newer"), to("newer")
    policy.started(policy.initial(change), update, change, NOW)
    assert load_all(policy, now=LATER) == "newer"


@pytest.mark.parametrize("broken", [set(), {"other"}])
def test_the_serving_model_may_be_wanted_again_while_another_is_loaded(broken):
    policy = wanting("serving")
    load_all(policy)
    policy.request(ModelUpdate(1, "other"), to("other"))
    assert str(policy.next(NOW)) == "other"
    policy.request(ModelUpdate(2, "serving"), to("serving"))
    policy.failed(NOW, 0) if broken else policy.loaded()
    assert (load_all(policy), policy.is_due(LATER)) == ("serving", False)


def test_first_load_that_failed_is_retried_later():
    policy = RefreshPolicy()
    update, change = ModelUpdate(1, "broken"), to("broken")
    assert str(policy.initial(change)) == "broken"
    policy.started(Version(), update, change, NOW)
    policy.request(update, change)
    assert not policy.is_due(NOW)
    assert policy.initial(change) == Version()
    assert str(policy.next(LATER)) == "broken"


@given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["begin", "end"]))), st.sets(st.integers(0, 5)))
def test_last_good_version_serves(steps, broken):
    policy, said, loading, good = RefreshPolicy(), [], None, Version()
    for step in [*steps, "end"]:
        if isinstance(step, int):
            said.append(step)
            policy.request(ModelUpdate(len(said), step), to(str(step)))
        elif step == "begin" and loading is None:
            loading = policy.next(NOW)
        elif step == "end" and loading is not None:
            if int(str(loading)) in broken:
                policy.failed(NOW, 0)
            else:
                policy.loaded()
                good = loading
            loading = None
        assert policy.serving == good
    served = load_all(policy, {str(one) for one in broken})
    if said and said[-1] not in broken:
        assert served == str(said[-1])
    else:
        assert served == str(good) or int(served) in said
    if said and said[-1] in broken:
        assert policy.is_due(LATER)
