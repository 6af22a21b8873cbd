"""Whatever the order of updates, loads and failures: one version serves at a time, and the last good one wins."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.plan import ONLY, Refreshed
from headrace.runtime.refresh import RefreshPolicy
from headrace.runtime.spec import ModelUpdate, Version

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
            policy.failed(version, now, 0)
        else:
            policy.loaded(version)
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
        policy.failed(policy.next(now), now, 0)
        assert policy.next(now) is None
        began = now
        while policy.next(now) is None:
            now += 30
        pauses.append(now - began)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    policy.failed(policy.next(now), now, 1000)
    assert policy.next(now + 9999) is None


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
        policy.failed(version, NOW, 0)
    assert load_all(policy, {"broken"}) == "good"
    assert policy.next(NOW + 59) is None
    assert load_all(copy(policy), now=NOW + 61) == "broken, good"
    policy.request(ModelUpdate(3, 3), to("mended", "k1"))
    assert load_all(policy) == "good, mended"


def test_what_failed_before_does_not_replace_a_newer_first_model():
    policy = wanting("older")
    load_all(policy, {"older"})
    change = to("newer")
    policy.request(ModelUpdate(9, "newer"), change)
    policy.loaded(policy.first(change))
    assert load_all(policy, now=LATER) == "newer"


@pytest.mark.parametrize("broken", [set(), {"other"}])
def test_the_serving_model_may_be_wanted_again_while_another_is_loaded(broken):
    policy = wanting("serving")
    load_all(policy)
    policy.request(ModelUpdate(1, "other"), to("other"))
    other = policy.next(NOW)
    policy.request(ModelUpdate(2, "serving"), to("serving"))
    policy.failed(other, NOW, 0) if broken else policy.loaded(other)
    assert (load_all(policy), policy.next(LATER)) == ("serving", None)


def test_first_load_that_failed_is_retried_later():
    policy = RefreshPolicy()
    update, change = ModelUpdate(1, "broken"), to("broken")
    broken = policy.first(change)
    assert str(broken) == "broken"
    policy.request(update, change)
    policy.failed(broken, NOW, 0)
    policy.request(update, change)
    assert policy.next(NOW) is None
    assert policy.first(change) == Version()
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
                policy.failed(loading, NOW, 0)
            else:
                policy.loaded(loading)
                good = loading
            loading = None
        assert policy.serving == good
    served = load_all(policy, {str(one) for one in broken})
    if said and said[-1] not in broken:
        assert served == str(said[-1])
    else:
        assert served == str(good) or int(served) in said
    if said and said[-1] in broken:
        assert policy.next(LATER) is not None
