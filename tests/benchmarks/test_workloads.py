"""Workloads make the same rows in every run, both sides predict the same for them, and what is lost is counted."""

import pytest

pytestmark = pytest.mark.large


@pytest.mark.parametrize("name", ["transformer", "docstrings"])
def test_both_sides_agree(benchmark_module, tmp_path, name):
    measure = benchmark_module("measure")
    cases = list(benchmark_module(f"workloads.{name}").cases(tmp_path, quick=True))

    assert "adaptive batches" in [case.name for case in cases]
    measure.check_equal(cases[-1])


def test_docstrings_are_a_fixed_sample_without_duplicates(benchmark_module):
    find = benchmark_module("workloads.docstrings").find_docstrings
    first, again = ([text for text, _ in zip(find(), range(50), strict=False)] for _ in range(2))

    assert first == again
    assert len(set(first)) == 50


def test_rows_are_the_same_in_every_run(benchmark_module):
    for name in ("tiny", "transformer"):
        make_rows = benchmark_module(f"workloads.{name}").make_rows
        first, again, other = (list(make_rows(chunk, 3)) for chunk in (0, 0, 1))
        assert all((one == two).all() for one, two in zip(first, again, strict=True))
        assert not any((one == two).all() for one, two in zip(first, other, strict=True))


def test_models_by_key_are_loaded_far_less_often(benchmark_module, tmp_path):
    keyed = benchmark_module("workloads.keyed")
    keyed.write_models(tmp_path)
    trial = keyed.Trial(tmp_path, {"min_batch_size": 100, "max_batch_size": 100}, 1500)
    (_, ours, predictions), (_, theirs, expected) = (trial.run(side) for side in ("Headrace", "Beam"))

    assert predictions == expected
    assert len(predictions) == 1500
    assert 20 <= 10 * ours <= theirs


def test_bad_rows_are_counted(benchmark_module):
    """Headrace loses no good row, Beam whole batches."""
    bad_rows = benchmark_module("workloads.bad_rows")
    trouble = next(trouble for trouble in bad_rows.TROUBLES if trouble.bad_every)
    (_, ours), (_, theirs) = (bad_rows.run(side, trouble, 500) for side in ("Headrace", "Beam"))
    assert ours == {"calls": "65", "predictions": "495", "rows in dead letters": "5", "good rows lost": "0"}
    assert theirs == {"calls": "5", "predictions": "0", "rows in dead letters": "500", "good rows lost": "495"}


@pytest.fixture
def recovery(benchmark_module):
    return benchmark_module("workloads.recovery")


def test_hosts_are_killed_as_often_as_asked(recovery, benchmark_module, tmp_path):
    handler = benchmark_module("elsewhere.mortal").MortalHandler

    started, moments = recovery.run(handler, tmp_path, 3)
    recoveries = recovery.find_recoveries(moments)

    assert started < moments[0].ns
    assert len(recoveries) == 3
    assert all(one.total > one.loading > 0 for one in recoveries)


def test_a_recovery_is_measured_from_death_to_the_next_attempt(recovery):
    def moments(*words):
        return [recovery.Moment(what, batch, int(ms * 1e6)) for what, batch, ms in words]

    death = moments(("begun", 0, 1), ("killed", 0, 2), ("loading", -1, 12), ("loaded", -1, 15))
    again, other = moments(("begun", 0, 16.5), ("begun", 32, 15.5))

    assert recovery.find_recoveries([*death, again]) == [(14.5, 3.0)]
    assert recovery.find_recoveries([*death, other, again, again._replace(ns=10**9)]) == [(14.5, 3.0)]
    for wrong in (death, [*death, other], [*death[:3], again], [*death[:2], again]):
        with pytest.raises(ValueError, match="no recovery"):
            recovery.find_recoveries(wrong)
