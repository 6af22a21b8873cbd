"""Every workload makes the rows it promises, the same in every run, and both sides predict the same for them."""

import pytest

pytestmark = pytest.mark.large


@pytest.mark.parametrize("name", ["tiny", "transformer", "docstrings"])
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
