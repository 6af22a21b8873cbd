"""Models live where they should, load as often as they must, and are released with their session."""

from __future__ import annotations

import copy
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from headrace import BatchingConfig, KeyedModelHandler, KeyModelMapping
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchFailed, ElementFailed, HostLost, ModelLoaded
from headrace.core.result import Failure
from headrace.runtime.placement import Choice
from headrace.runtime.prepare import catching

HERE = os.getpid()


def test_mappable_model_is_mapped(home):
    spec = home.spec(home.handler(large_model=True))
    [(first, loader, computing)], events = home.run(spec)
    assert (first, computing) == (2, HERE)
    [elsewhere, second], others = home.elsewhere(spec, [3, 4])
    assert elsewhere == (6, loader, second[2])
    assert second[:2] == (8, loader)
    assert home.noted("loaded") == [loader]
    assert loader == HERE != second[2]
    assert len(events.of(ModelLoaded)) == 1
    assert others.of(ModelLoaded) == []
    assert [line.rpartition(" in ")[0] for line in home.logged()] == ["Homely: mapped 0.8 MB"]


@pytest.mark.parametrize(
    ("mappable", "has_accelerator", "is_loaded_here"), [(False, False, False), (None, True, False), (True, True, True)]
)
def test_model_is_loaded_by_a_host_if_it_says_so_or_may_use_an_accelerator(
    home, monkeypatch, mappable, has_accelerator, is_loaded_here
):
    monkeypatch.setattr("headrace.runtime.acquire.has_accelerator", lambda environment: has_accelerator)
    [(_, loader, computing)], events = home.run(home.spec(home.handler(large_model=True, mappable=mappable)))
    assert computing == HERE
    assert (loader == HERE) == is_loaded_here
    assert home.noted("loaded") == [loader]
    assert len(events.of(ModelLoaded)) == 1


def test_threads_map_a_model_once(home):
    spec = home.spec(home.handler(large_model=True))
    specs = [replace(spec, plan=replace(spec.plan, models={None: copy.copy(spec.plan.handler)})) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        [(one, events), (other, more)] = pool.map(home.run, specs)
    assert one == other
    assert len(events.of(ModelLoaded) + more.of(ModelLoaded)) == len(home.noted("loaded")) == len(home.logged()) == 1


def test_copies_are_hosts_on_the_machine(home):
    spec = home.spec(home.handler(model_copies=2, computers=2))
    here, events = home.run(spec, range(6))
    there, others = home.elsewhere(spec, range(6))
    [loader] = home.noted("loaded")
    hosts = {host for _, _, host in [*here, *there]}
    assert len(hosts) == 2
    assert hosts.isdisjoint({HERE, loader})
    assert sorted(value for value, _, _ in here) == [0, 2, 4, 6, 8, 10]
    assert [len(one.of(ModelLoaded)) for one in (events, others)] == [1, 0]
    assert home.logged() == ["Homely: the model lives in the machine's hosts, in 2 copies that map the same weights."]


@pytest.mark.large
@pytest.mark.parametrize("isolate", [False, True])
def test_unmappable_model_lives_in_one_host_for_all(home, isolate):
    spec = home.spec(home.handler(home.guarded, large_model=True), isolate=isolate)
    [(_, loader, host)], events = home.run(spec)
    [(_, _, same)], _ = home.elsewhere(spec)
    in_vain = [] if isolate else [HERE]
    assert sorted(home.noted("loaded")) == sorted([*in_vain, host])
    assert loader == host == same
    assert len(events.of(ModelLoaded)) == 1
    [line] = home.logged()
    assert line.startswith("Homely: the model lives in the machine's hosts, since it does not pickle (TypeError: ")
    assert "lock" in line


@pytest.mark.large
@pytest.mark.parametrize(
    ("options", "request_", "hosted"),
    [
        ({"large_model": True}, {}, False),
        ({"model_copies": 2}, {}, False),
        ({"large_model": True}, {"isolate": True}, True),
    ],
    ids=["mapped", "copies", "in isolation"],
)
def test_functions_run_in_the_host_or_in_process(home, options, request_, hosted):
    handler = home.handler(**options)
    handler = handler.with_preprocess_fn(lambda element: [os.getpid()])
    handler = handler.with_postprocess_fn(lambda prediction: (prediction, os.getpid()))
    [((doubled, _, computing), after)], _ = home.run(home.spec(handler, **request_))
    assert doubled == [computing if hosted else HERE] * 2
    assert after == doubled[0]


@pytest.mark.large
def test_models_by_key_are_placed_separately(home):
    mappings = [KeyModelMapping(["a"], home.handler(large_model=True)), KeyModelMapping(["b"], home.handler())]
    spec = home.spec(KeyedModelHandler(mappings))
    [(_, (_, first, computing)), (_, second)], events = home.run(spec, [("a", 1), ("b", 1)])
    assert computing == HERE == first
    assert second == (2, HERE, HERE)
    assert len(events.of(ModelLoaded)) == 2
    [(_, (_, same, _)), (_, (_, own, there))], events = home.elsewhere(spec, [("a", 1), ("b", 1)])
    assert same == first
    assert own == there != HERE
    assert len(events.of(ModelLoaded)) == 1


@pytest.mark.large
@pytest.mark.parametrize("how", ["once", "always"])
def test_host_of_a_model_by_key_is_replaced_and_retried_after_its_death(home, how):
    handler = home.handler(home.guarded, large_model=True, dies=how)
    spec = catching(home.spec(KeyedModelHandler([KeyModelMapping(["a"], handler)])), Exception)
    [outcome], events = home.run(spec, [("a", 3)])
    assert len(events.of(HostLost)) == (1 if how == "once" else 2)
    if how == "once":
        assert outcome[1][0] == 6
    else:
        assert isinstance(outcome.error, HostDiedError)


@pytest.mark.large
def test_out_of_memory_in_a_host_of_a_model_by_key_is_learnt_from(home):
    handler = home.handler(home.guarded, large_model=True, fits=2)
    spec = home.spec(KeyedModelHandler([KeyModelMapping(["a"], handler)]))
    spec = replace(spec, plan=replace(spec.plan, batching=BatchingConfig(8, 8)))
    outcomes, events = home.run(spec, [("a", n) for n in range(40)])
    assert [value for _, (value, _, _) in outcomes] == [2 * n for n in range(40)]
    assert len(events.of(BatchFailed)) <= 4  # of 8 and 4, and trials; not all of five batches


@pytest.mark.large
def test_failures_in_the_machines_hosts_are_failures_here(home):
    handler = home.handler(home.guarded, large_model=True)
    spec = catching(home.spec(KeyedModelHandler([KeyModelMapping(["a"], handler)])), Exception)
    outcomes, events = home.run(spec, [("a", 1), ("a", None), ("a", 2)])
    [failure] = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert isinstance(failure.error, TypeError)
    assert failure.element == ("a", None)
    assert sorted(one[1][0] for one in outcomes if one is not failure) == [2, 4]
    assert len(events.of(BatchFailed)) == len(events.of(ElementFailed)) == 1


@pytest.mark.large
def test_isolated_models_by_key_are_mapped_by_the_processes_host(home):
    mappings = [KeyModelMapping([key], home.handler(large_model=True)) for key in "ab"]
    spec = home.spec(KeyedModelHandler(mappings), isolate=True)
    [(_, (_, first, host)), (_, (_, second, same))], events = home.run(spec, [("a", 1), ("b", 1)])
    assert host == same
    assert len({first, second, host, HERE}) == 4
    assert len(events.of(ModelLoaded)) == 2
    [(_, (_, again, other)), _], events = home.elsewhere(spec, [("a", 1), ("b", 1)])
    assert again == first
    assert other not in (host, first, HERE)
    assert not events.of(ModelLoaded)


@pytest.mark.large
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("cores", "placement"), [(10**8, "machine"), (1, "process")])
def test_automatic_placement(home, monkeypatch, cores, placement, isolate):
    monkeypatch.setattr("headrace.runtime.placement.allowed_cores", lambda: cores)  # how many copies there might be
    [(_, loader, computing)], _ = home.run(home.spec(home.handler(), placement="auto", isolate=isolate))
    assert (loader == computing) == (placement == "process" or not isolate)
    assert len(home.noted("loaded")) == (1 if placement == "machine" else 2)
    assert (computing == HERE) != isolate
    chosen, *_ = home.logged()
    assert chosen.startswith(f"Homely: placement='auto' has chosen '{placement}': ")
    assert f"for each of {cores} processes" in chosen


def two(home, load):
    """Specs of two transforms that share a model's identifier but not a handler."""
    handlers = [home.handler(load, made=name, large_model=True) for name in ("first", "second")]
    return [replace(home.spec(one, model_identifier="m"), pipeline="p") for one in handlers]


@pytest.mark.large
def test_transforms_with_one_identifier_map_one_model(home):
    first, second = two(home, home.Model)
    [(_, loader, _)], events = home.run(first)
    second.plan.handler.made = "second"  # as without sharing, only the handler that loads is told what loading sets
    [(_, same, computing)], others = home.run(second)
    assert home.noted("loaded") == [loader] == [same]
    assert computing == HERE
    assert len(events.of(ModelLoaded) + others.of(ModelLoaded)) == 1
    [(_, same, _)], _ = home.elsewhere(second)
    assert same == loader


@pytest.mark.large
@pytest.mark.parametrize("load", ["guarded", "Model"])
def test_hosts_belong_to_one_transform(home, load):
    specs = two(home, getattr(home, load))
    if load == "Model":
        specs = [replace(spec, copies=2) for spec in specs]
    [(_, _, first)], _ = home.run(specs[0])
    [(_, _, second)], _ = home.run(specs[1])
    assert len({first, second, HERE}) == 3
    [(_, _, again)], _ = home.elsewhere(specs[0])
    assert again not in (second, HERE)


GB = 10**9


@pytest.mark.parametrize(
    ("nbytes", "processes", "free", "placement"),
    [
        (1 * GB, 4, 8 * GB, "process"),
        (1 * GB, 5, 8 * GB, "machine"),
        (1 * GB, 1, 2 * GB, "process"),
        (1 * GB + 1, 1, 2 * GB, "machine"),
        (0, 64, 1 * GB, "process"),
        (3 * GB, 8, 32 * GB, "machine"),
    ],
)
def test_choice_leaves_half_of_the_free_memory_unused(nbytes, processes, free, placement):
    assert Choice(nbytes, processes, free).placement == placement
