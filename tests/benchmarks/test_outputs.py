"""The check of equality passes for equal outputs in any order, and for nothing else."""

import numpy as np
import pytest
import torch

from headrace import PredictionResult

pytestmark = pytest.mark.large


@pytest.fixture
def outputs(benchmark_module):
    return benchmark_module("outputs")


def results(*values, model_id="m"):
    return [PredictionResult(np.array([float(place)]), value, model_id) for place, value in enumerate(values)]


@pytest.mark.parametrize("given", [[], results(1, 0, 1)])
def test_order_does_not_matter(outputs, given):
    outputs.Outputs(given).check_same(outputs.Outputs(given[::-1]))


@pytest.mark.parametrize(
    ("theirs", "complaint"),
    [
        (results(1, 0, 0), "1 of 3 predictions differ, by up to 1"),
        (results(0, 1, 1), "2 of 3 predictions differ"),
        (results(1, 0), "3 predictions against 2"),
        (results(1, 0, 1, model_id="another"), "other examples or to another model"),
        ([*results(1, 0), results(1)[0]], "other examples or to another model"),
        (results([1, 1], [0, 0], [1, 1]), "other shapes"),
        (results(float("nan"), 0, 1), "1 of 3 predictions differ"),
    ],
)
def test_differences_are_found(outputs, theirs, complaint):
    with pytest.raises(outputs.OutputsDifferError, match=complaint):
        outputs.Outputs(results(1, 0, 1)).check_same(outputs.Outputs(theirs))


def test_floats_may_differ_within_the_tolerance_and_not_beyond(outputs):
    ours = outputs.Outputs([PredictionResult("text", torch.tensor([1.0, 2.0]))])
    near = outputs.Outputs([PredictionResult("text", torch.tensor([1.0, 2.00001]))])
    far = outputs.Outputs([PredictionResult("text", torch.tensor([1.0, 2.1]))])

    ours.check_same(near, tolerance=1e-4)
    with pytest.raises(outputs.OutputsDifferError, match=r"1 of 1 predictions differ, by up to 0\.0999"):
        ours.check_same(far, tolerance=1e-4)
    with pytest.raises(outputs.OutputsDifferError, match="1 of 1 predictions differ"):
        ours.check_same(near)
