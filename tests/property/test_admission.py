"""Whatever is held, loading and free: admitted models fit memory, and no model is evicted in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.models.admission import Admit, Evict, Held, Refuse, Wait, admit, margin_of

figures = st.integers(0, 20)  # few, so that sums meet exactly; times 10**8, so that the margin is in their midst
nbytes = figures.map(lambda figure: figure * 10**8)
needs = st.none() | nbytes
models = st.lists(
    st.builds(Held, st.text("abcdef", min_size=1), nbytes, st.integers(0, 1), st.integers(0, 3).map(float)),
    max_size=6,
    unique_by=lambda model: model.key,
)
situations = st.tuples(needs, models, st.lists(needs, max_size=3), nbytes, nbytes, nbytes)


def idle(held):
    return [model for model in held if not model.leases]


def decide(situation):
    *rest, leaving = situation
    return admit(*rest, leaving=leaving)


def missing(need, loading, available, limit):
    return (need or 0) + sum(filter(None, loading)) + margin_of(need, limit) - min(available, limit)


@given(situations)
def test_admitted_models_fit_memory(situation):
    need, _, loading, available, limit, _ = situation
    if decide(situation) == Admit():
        assert need is None or missing(need, loading, available, limit) <= 0


@given(situations)
def test_models_of_unknown_size_are_loaded_alone(situation):
    need, _, loading, *_ = situation
    verdict = decide(situation)
    if None in loading or (need is None and loading):
        assert isinstance(verdict, (Wait, Refuse))
    if need is None:
        assert not isinstance(verdict, Refuse)


@given(situations)
def test_evicted_models_are_idle_and_enough_and_none_is_evicted_in_vain(situation):
    need, held, loading, available, limit, leaving = situation
    verdict = decide(situation)
    if isinstance(verdict, Evict):
        sizes = {model.key: model.nbytes for model in idle(held)}
        freed = [sizes[key] for key in verdict.keys]  # KeyError: one is in use
        short = missing(need, loading, available, limit) - leaving
        assert len(set(verdict.keys)) == len(verdict.keys)
        assert sum(freed) >= short > sum(freed) - min(freed)


@given(situations)
def test_spared_models_were_used_later_or_would_not_suffice_or_are_not_needed(situation):
    need, held, loading, available, limit, leaving = situation
    verdict = decide(situation)
    if isinstance(verdict, Evict):
        last = max(model.last_used for model in held if model.key in verdict.keys)
        older = sum(model.nbytes for model in idle(held) if model.last_used < last)
        assert older < missing(need, loading, available, limit) - leaving


@given(situations)
def test_a_model_is_refused_only_if_nothing_can_make_room(situation):
    need, held, loading, available, limit, leaving = situation
    verdict = decide(situation)
    assert loading or leaving or not isinstance(verdict, Wait)
    if isinstance(verdict, Refuse) and need <= limit - margin_of(need, limit):
        assert not loading
        assert not leaving
        assert missing(need, loading, available, limit) > sum(model.nbytes for model in idle(held))


@given(needs, models, nbytes, nbytes)
def test_a_model_that_fits_only_alone_is_admitted_when_all_others_are_idle(need, held, others, limit):
    held = [model._replace(leases=0) for model in held]
    available = limit - others - sum(model.nbytes for model in held)
    for _ in range(2):
        verdict = admit(need, held, [], available, limit)
        if isinstance(verdict, Evict):
            gone = [model for model in held if model.key in verdict.keys]
            held = [model for model in held if model not in gone]
            available += sum(model.nbytes for model in gone)
    assert isinstance(verdict, Admit) == (need is None or need <= limit - others - margin_of(need, limit))


@given(situations, st.randoms())
def test_the_order_of_models_does_not_matter(situation, random):
    need, held, loading, *rest = situation
    mixed, others = random.sample(held, len(held)), random.sample(loading, len(loading))
    assert decide((need, mixed, others, *rest)) == decide(situation)
