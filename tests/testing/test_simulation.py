"""The simulation of runs: what it predicts where that can be worked out, and that alike workers may stand for all."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ConfigurationError
from headrace.testing import simulate

LINE = {"fixed": 0.02, "per_row": 0.001}
MODEL = {"load_seconds": 2, "memory_gb": 1.0, "batch_seconds": LINE}
OF_100 = {**MODEL, "min_batch_size": 100, "max_batch_size": 100}
KEYED = {"route": "keyed", "models": {f"m{number}": MODEL for number in range(6)}}


def plan(**changes: Any) -> dict[str, Any]:
    return {"rows": 10_000, "models": {"m": OF_100}, **changes}


def test_fixed_batches_take_what_they_take():
    found = simulate(plan(machines={"start_seconds": 3}, seconds_per_row=0.0001))
    assert found.seconds == pytest.approx(3 + 1 + 2 + 100 * (0.02 + 100 * 0.001))
    assert (found.loads, found.batches, found.batch_rows) == ({"m": 1}, {"m": 100}, {"m": 100})
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.binds.startswith("model 67%")


def test_a_table_of_sizes_is_followed_and_prolonged():
    table = [[1, 0.5], [50, 0.5], [75, 1.0]]
    found = simulate(plan(models={"m": {**OF_100, "load_seconds": 0, "batch_seconds": table}}))
    assert found.seconds == pytest.approx(100 * 1.5)


def test_more_workers_than_cores_share_them():
    alone, two, crowded = (
        simulate(plan(rows=100_000, machines={"workers": workers, "cores": cores}))
        for workers, cores in ((1, 2), (2, 2), (2, 1))
    )
    assert two.seconds - 2 == pytest.approx((alone.seconds - 2) / 2, rel=0.02)
    assert crowded.seconds - 2 == pytest.approx(alone.seconds - 2, rel=0.02)


@pytest.mark.parametrize("placement", ["process", "machine"])
def test_keyed_models_are_evicted_to_make_room(placement):
    machines = {"workers": 2, "memory_gb": 10}
    found = simulate({"rows": 20_000, **KEYED, "placement": placement, "machines": machines})
    assert found.memory_bytes <= 10e9
    assert sum(found.batches[name] * found.batch_rows[name] for name in found.batches) == pytest.approx(20_000)
    held = 12 if placement == "process" else 6
    assert (sum(found.evictions.values()) > 0) == (placement == "process")
    assert sum(found.loads.values()) >= (held if placement == "machine" else 8)
    assert all(found.loads[name] >= found.evictions.get(name, 0) for name in found.loads)


def test_auto_shares_models_that_would_take_half_of_the_memory():
    both = [simulate(plan(placement="auto", machines={"workers": 4, "memory_gb": size})) for size in (8, 16)]
    assert [found.placement for found in both] == ["machine", "process"]
    assert [sum(found.loads.values()) for found in both] == [1, 4]


def test_a_quota_holds_a_run_back_and_refusals_and_prices_count():
    endpoint = {"latency_seconds": 0.05, "quota_per_second": 200, "refused_at_random": 0.02, "price_per_1000_rows": 3}
    found = simulate({"rows": 10_000, "endpoints": {"e": endpoint}, "machines": {"workers": 2, "price_per_hour": 36}})
    assert found.seconds == pytest.approx(50, rel=0.05)
    assert found.binds.startswith("waiting for a quota")
    assert 0.02 < found.refused["e"] / found.requests["e"] < 0.08
    assert found.cost == pytest.approx(30 + found.seconds / 100)


def test_an_endpoint_that_is_faster_than_the_model_costs_no_time():
    endpoint = {"latency_seconds": 0.05, "quota_per_second": 1000, "refused_at_random": 0.02}
    alone, both = simulate(plan()), simulate(plan(endpoints={"e": endpoint}))
    assert both.seconds == pytest.approx(alone.seconds, rel=0.01)
    assert both.refused["e"] == pytest.approx(10_000 * 0.02 / 0.98, rel=0.01)


def test_what_a_preempted_machine_was_at_is_done_again():
    calm = plan(rows=100_000, rows_per_bundle=1000, machines={"count": 4})
    lost = simulate({**calm, "preemptions": {"at_hours": [20 / 3600], "restart_seconds": 10}})
    assert lost.preempted == 1
    assert lost.loads == {"m": 5}
    assert lost.batches == {"m": 1000}
    assert simulate(calm).seconds < lost.seconds < simulate(calm).seconds + 10


def test_nothing_takes_time():
    nothing = {"load_seconds": 0, "batch_seconds": {"fixed": 0, "per_row": 0}}
    with pytest.raises(ConfigurationError, match="nothing in the plan takes time"):
        simulate(plan(models={"m": nothing}))


@pytest.mark.parametrize("more", [{"rows": 10**15}, {"rows": 10**8, "rows_per_bundle": 1}])
def test_more_bundles_than_can_be_simulated_are_an_error(more):
    with pytest.raises(ConfigurationError, match="give fewer rows, or rows_per_bundle a larger number"):
        simulate(plan(**more))


def test_a_bundle_that_outlasts_every_machine_is_an_error():
    with pytest.raises(ConfigurationError, match="rows_per_bundle a smaller number"):
        simulate(plan(rows_per_bundle=10_000, preemptions={"per_hour": 10_000}))


GROUPED = {
    "all": {"models": {"a": MODEL, "b": OF_100}},
    "keyed": {**KEYED, "zipf": 1.0},
    "preempted": {"models": {"a": MODEL}, "preemptions": {"per_hour": 20, "restart_seconds": 5}},
    "shared": {**KEYED, "placement": "machine"},
    "endpoint": {"endpoints": {"e": {"latency_seconds": 0.05, "quota_per_second": 1200}}},
}


@pytest.mark.parametrize("name", GROUPED)
def test_one_machine_may_stand_for_all(name):
    """Without keys the same to the last digit; with keys each machine has its own order of them."""
    given = {"rows": 30_000, "machines": {"count": 18, "workers": 2, "memory_gb": 9}, **GROUPED[name]}
    grouped, each = (simulate(given, grouped=one) for one in (True, False))
    exact = name in ("all", "preempted")
    assert grouped.seconds == pytest.approx(each.seconds, rel=1e-9 if exact else 0.05)
    assert sum(grouped.loads.values()) == pytest.approx(sum(each.loads.values()), rel=1e-9 if exact else 0.1)
    assert sum(grouped.batches.values()) == pytest.approx(sum(each.batches.values()), rel=1e-9 if exact else 0.05)


def test_many_equal_batches_are_taken_together():
    """Ten times as many rows as are done one by one take ten times as long as these."""
    few, many = (simulate(plan(rows=rows)) for rows in (1_000_000, 20_000_000))
    assert many.seconds - 2 == pytest.approx(20 * (few.seconds - 2), rel=1e-3)


def test_what_does_not_fit_into_memory_is_an_error_with_the_cure():
    with pytest.raises(ConfigurationError, match=r'machines.memory_gb gives 4.0 GB.*placement = "machine"'):
        simulate(plan(machines={"workers": 4, "memory_gb": 4}))
    with pytest.raises(ConfigurationError, match="Give the machine or the container more memory"):
        simulate({"rows": 10, **KEYED, "machines": {"memory_gb": 1.5}})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"row": 1}, "there is no key 'row'; did you mean 'rows'"),
        ({"rows": 0}, "rows must be a whole number of at least 1 .rows in all., not 0"),
        ({"rows": 1.5}, "rows must be a whole number"),
        ({"route": "some"}, 'route must be "all" or "keyed"'),
        ({"zipf": 1.0}, 'zipf: .*add route = "keyed"'),
        ({"models": {}}, r"add a table \[models.NAME\]"),
        ({"models": 3}, r"models must be a table, \[models\], not 3"),
        ({"models": {"m": {}}}, "the plan lacks models.m.batch_seconds: seconds of a batch"),
        ({"models": {"m": {**MODEL, "load_secs": 3}}}, "'models.m.load_secs'; did you mean 'load_seconds'"),
        ({"models": {"m": {**MODEL, "load_seconds": "3"}}}, "models.m.load_seconds must be a number of at least 0"),
        ({"models": {"m": {**MODEL, "batch_seconds": 3}}}, "models.m.batch_seconds must be { fixed = SECONDS"),
        ({"models": {"m": {**MODEL, "batch_seconds": [[1, 1]]}}}, "at least two sizes"),
        ({"models": {"m": {**MODEL, "min_batch_size": 20_000}}}, "min_batch_size 20000 is above max_batch_size 10000"),
        ({"machines": {"workers": 0}}, "machines.workers must be a whole number of at least 1"),
        ({"preemptions": {"at_hours": 3}}, "preemptions.at_hours must be a list of hours"),
        ({"endpoints": {"e": {"latency_seconds": 0}}}, "endpoints.e.latency_seconds must be a number above 0"),
        ({"endpoints": {"e": {"latency_seconds": 1, "refused_at_random": 1}}}, "refused_at_random must be at most 0.5"),
        ({"endpoints": {"m": {"latency_seconds": 1}}}, "models.m and endpoints.m have one name"),
        ({"route": "keyed", "models": {"m": {**MODEL, "share": 0}}}, "give one of them a share above 0"),
    ],
)
def test_a_wrong_plan_is_an_error_that_names_the_key(changes, says):
    with pytest.raises(ConfigurationError, match=says):
        simulate(plan(**changes))


def test_two_workers_with_memory_for_one_model_take_turns():
    model = {**MODEL, "memory_gb": 0.06, "max_batch_size": 32}
    machines = {"workers": 2, "memory_gb": 0.1, "memory_per_worker_gb": 0}
    found = simulate({"rows": 3000, "route": "keyed", "machines": machines, "models": {"a": model, "b": model}})
    assert found.memory_bytes == 60_000_000
    assert min(found.loads.values()) > 1
