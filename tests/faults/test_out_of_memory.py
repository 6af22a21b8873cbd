"""The kernel itself kills a host for its hunger, in a memory cgroup that the host joins as it loads its model."""

from __future__ import annotations

import functools
import os
import uuid
from pathlib import Path

import pytest

from headrace import BatchingConfig, Failure, predict
from headrace.core.errors import HostDiedError
from headrace.core.result import Stage
from headrace.testing import DoublingHandler, eat_memory

LIMIT = 96 << 20
HUNGER = 2 << 30


@pytest.fixture
def group():
    """A new memory cgroup within this process's own."""
    folder, limit = find_own_group()
    folder /= f"headrace-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here, which takes root and writable cgroups: {error}")
    try:
        if not (folder / limit).exists():
            pytest.skip(f"memory is not controlled in cgroups here: there is no {folder / limit}")
        (folder / limit).write_text(str(LIMIT))
        yield folder
    finally:
        folder.rmdir()


def find_own_group():
    """This process's memory cgroup and the name of the file with its limit, in cgroups of either version."""
    entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controller: path.lstrip("/") for _, controllers, path in entries for controller in controllers.split(",")}
    if "memory" in paths:
        return Path("/sys/fs/cgroup/memory", paths["memory"]), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup", paths.get("", "")), "memory.max"


class HungryHandler(DoublingHandler):
    """Joins the cgroup, where certain examples, or too many at once, make it eat more than there is."""

    def __init__(self, group, *examples, at_once=10_000):
        super().__init__()
        self._group = group
        self._examples = examples
        self._at_once = at_once

    def load_model(self):
        (self._group / "cgroup.procs").write_text(str(os.getpid()))
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        if len(batch) > self._at_once or any(example in self._examples for example in batch):
            eat_memory(HUNGER)
        return super().run_inference(batch, model, inference_args)


ERROR = (
    "the host was killed by SIGKILL, since the machine had run out of memory while it was running inference on "
    "element 13 (counted from 0) of a batch of 64."
)
as_one_batch = functools.partial(predict, isolate=True, batching=BatchingConfig(64, 64))


def test_only_the_hungry_element_fails(group):
    outcomes = list(as_one_batch(HungryHandler(group, 13), range(64), on_failure="yield"))
    [failure] = [one for one in outcomes if isinstance(one, Failure)]
    assert outcomes.index(failure) == 13
    assert (failure.stage, failure.element, str(failure.error)) == (Stage.INFERENCE, 13, ERROR)
    assert [one.inference for one in outcomes if one is not failure] == [2 * n for n in range(64) if n != 13]


def test_batches_that_are_too_large_become_smaller_and_no_row_fails(group, caplog):
    outcomes = list(as_one_batch(HungryHandler(group, at_once=20), range(640)))
    assert [one.inference for one in outcomes] == [2 * n for n in range(640)]
    deaths = [one.getMessage() for one in caplog.records if "the machine had run out of memory" in one.getMessage()]
    assert 2 <= len(deaths) <= 15  # of the few batches that were on their way already, not of all


def test_without_exception_handling(group):
    with pytest.raises(HostDiedError) as caught:
        list(as_one_batch(HungryHandler(group, 13), range(64)))
    assert str(caught.value) == ERROR


def test_in_pre_and_postprocessing(group):
    hungry = functools.partial(eat_from, 13)
    handler = HungryHandler(group).with_preprocess_fn(hungry).with_postprocess_fn(functools.partial(eat_from, 40))
    outcomes = list(as_one_batch(handler, range(64), on_failure="yield"))
    failures = {place: one for place, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert {place: (one.stage, one.index) for place, one in failures.items()} == {
        13: (Stage.PREPROCESSING, 0),
        40: (Stage.POSTPROCESSING, 0),
    }
    assert all("since the machine had run out of memory" in str(one.error) for one in failures.values())


def eat_from(culprit, value):
    """Of an example or a prediction."""
    if culprit in (value, getattr(value, "example", None)):
        eat_memory(HUNGER)
    return value
