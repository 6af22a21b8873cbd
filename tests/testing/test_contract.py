"""The contract fails a handler for what is wrong with it, and for nothing else."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import ModelHandler
from headrace.testing import BrokenLoadHandler, DoublingHandler, HandlerContract, MiscountingHandler
from headrace.testing.contract_tools import LoadedHandler

TESTS = [name for name in dir(HandlerContract) if name.startswith("test_")]
EXAMPLES = [[1], [2], [3], [4]]
BAD = None
"""What cannot be doubled."""


def having(**methods):
    """A handler that doubles, but has these methods."""
    return type("Odd", (DoublingHandler,), methods)


def running(before=lambda batch, inference_args: batch, after=lambda result, place, batch: result):
    """One that changes what it is given to run, or each result, of a place in a batch."""

    def run_inference(self, batch, model, inference_args=None):
        given = before(batch, inference_args)
        return [
            after(result, place, batch)
            for place, result in enumerate(DoublingHandler.run_inference(self, given, model))
        ]

    return having(run_inference=run_inference)


def look_at_the_batch(result, place, batch):
    return result._replace(inference=len(batch))


def fail_beside_the_empty(batch, inference_args):
    if batch == [[]]:
        raise ValueError("a list of nothing has no type")
    return batch


def run_in_one_thread(batch, inference_args):
    assert threading.current_thread() is threading.main_thread()
    return batch


class LoadsEarly(DoublingHandler):
    def __init__(self):
        super().__init__()
        self.load_model()


class HoldsRows(DoublingHandler):
    def __init__(self):
        super().__init__()
        self.rows = (row for row in ())


class KeepsItsModel(DoublingHandler):
    def load_model(self):
        self.model = (row for row in ())
        return super().load_model()


class NeedsItsOwnLoad(DoublingHandler):
    loaded = False

    def load_model(self):
        self.loaded = True
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        return super().run_inference(batch if self.loaded else [], model)


class NeverTheSame(DoublingHandler):
    def __init__(self):
        super().__init__()
        self.counter = itertools.count()

    def run_inference(self, batch, model, inference_args=None):
        return [result._replace(inference=next(self.counter)) for result in super().run_inference(batch, model)]


class AddsFunctionsToItself(DoublingHandler):
    def with_preprocess_fn(self, fn):
        self.get_preprocess_fns = lambda: [fn]
        return self


NEIGHBOURS = "test_neighbours_change_no_outcome"

BAD_HANDLERS: list[tuple[Any, set[str]]] = [
    (DoublingHandler, set()),
    (LoadsEarly, {"test_construction_loads_nothing"}),
    (HoldsRows, {"test_pickles", "test_pickles_after_loading", "test_copies_share_a_model"}),
    (KeepsItsModel, {"test_pickles_after_loading"}),
    (running(after=lambda result, *_: result._replace(example=0)), {"test_one_prediction_for_each_example"}),
    (running(run_in_one_thread), {"test_threads_share_the_model"}),
    (having(get_num_bytes=lambda *_: 0), {"test_num_bytes_grows_with_the_batch"}),
    (having(get_metrics_namespace=lambda _: ""), {"test_metrics_namespace_is_a_name"}),
    (having(get_resource_hints=lambda _: ["min_ram"]), {"test_resource_hints_are_a_dict"}),
    (having(with_no_batching=lambda self: self), {"test_elements_that_are_batches"}),
    (running(lambda batch, _: [example or [] for example in batch]), {"test_a_bad_example_fails_alone"}),
    (having(set_environment_vars=lambda _: None), {"test_env_vars_are_set_before_loading"}),
    (running(fail_beside_the_empty), {NEIGHBOURS}),
]

AT_LEAST: list[tuple[Any, set[str]]] = [
    (BrokenLoadHandler, {"test_pickles", "test_threads_share_the_model", "test_elements_that_are_batches"}),
    (having(batch_elements_kwargs=lambda _: {"max_batchsize": 3}), {"test_batching_options_are_known"}),
    (having(validate_inference_args=lambda _, args: {}[args]), {"test_keys_are_kept", NEIGHBOURS}),
    (
        running(after=look_at_the_batch),
        {"test_batched_equals_one_by_one", "test_a_bad_example_fails_alone", NEIGHBOURS},
    ),
    (NeedsItsOwnLoad, {"test_copies_share_a_model"}),
    (
        running(after=lambda result, place, batch: result._replace(inference=(batch[0], place))),
        {"test_predictions_follow_the_order_of_the_batch", "test_batched_equals_one_by_one"},
    ),
    (running(lambda batch, _: [[list(one), one.clear()][0] for one in batch]), {"test_inputs_stay_as_they_are"}),
    (running(lambda batch, _: [list(batch), batch.clear()][0]), {"test_inputs_stay_as_they_are"}),
    (running(lambda batch, args: [batch, args.clear()][0]), {"test_inputs_stay_as_they_are"}),
    (NeverTheSame, {"test_same_batch_same_predictions", "test_predict_equals_calling_it"}),
    (AddsFunctionsToItself, {"test_functions_before_and_after"}),
    (partial(MiscountingHandler, -1), {"test_one_prediction_for_each_example", "test_predict_equals_calling_it"}),
]


@pytest.mark.parametrize(("make", "wrong"), BAD_HANDLERS)
def test_a_handler_fails_for_what_is_wrong_with_it(make, wrong):
    assert failing(HandlerContract(), make) == wrong


@pytest.mark.parametrize(("make", "wrong"), AT_LEAST)
def test_a_handler_fails_at_least_for_what_is_wrong_with_it(make, wrong):
    assert failing(HandlerContract(), make, tests=wrong) == wrong


def test_a_suite_may_define_equality():
    class Loose(HandlerContract):
        def equal(self, a, b):
            return a.example == b.example

    assert failing(Loose(), running(after=look_at_the_batch)) == set()


SUITE = """
import pytest
from headrace.testing import *

MODULE_HANDLER = DoublingHandler()

class TestMine(HandlerContract):
    {given}
"""

MINE = {
    "attributes": "handler = MODULE_HANDLER; examples = [1, 2, 3, 4]; inference_args = {}; bad_example = None",
    "methods_and_fixtures": """
    def handler(self, tmp_path):
        assert tmp_path.exists()
        return DoublingHandler()
    @pytest.fixture(params=[[1, 2, 3, 4]])
    def examples(self, request): return request.param
    def bad_example(self, handler): return handler
    """,
    "no_bad_example": "handler = MODULE_HANDLER; examples = [1, 2, 3, 4]",
    "no_examples": "handler = MODULE_HANDLER",
    "wrong": "handler = MiscountingHandler(-1); examples = [1, 2, 3, 4]",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What pytest reports of each suite, and of the documented one, run as a third party runs its own."""
    page = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()
    documented = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    suites = {name: SUITE.format(given=given) for name, given in MINE.items()} | {"documented": documented}
    folder = tmp_path_factory.mktemp("mine")
    for name, text in suites.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-W", "error", str(folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder).stdout
    return {name: [line for line in output.splitlines() if f"test_{name}.py" in line] for name in suites} | {"": output}


def count(lines, outcome):
    return sum(line.startswith(outcome) for line in lines)


@pytest.mark.parametrize("name", ["attributes", "methods_and_fixtures", "documented"])
def test_a_suite_gives_attributes_methods_or_fixtures(reports, name):
    assert count(reports[name], "PASSED") == len(TESTS)
    assert [line for line in reports[name] if line.startswith(("FAILED", "ERROR", "SKIPPED"))] == []


def test_contract_without_a_bad_example_skips_one_test(reports):
    assert count(reports["no_bad_example"], "PASSED") == len(TESTS) - 1
    assert "the subclass gives no bad_example" in reports[""]


def test_missing_parts_of_a_suite_are_named(reports):
    assert count(reports["no_examples"], "ERROR") > 10
    assert "TestMine must define 'examples'; see headrace.testing.HandlerContract." in reports[""]


def test_a_failure_says_what_is_wrong(reports):
    assert count(reports["wrong"], "FAILED") > 5
    assert "was given 1 example and returned 0 predictions" in reports[""]


def failing(suite: HandlerContract, make: Any, examples: list[Any] = EXAMPLES, tests: Any = TESTS) -> set[str]:
    """The names of those tests that fail for the handler that ``make`` gives."""
    return {name for name in tests if not _passes(getattr(suite, name), make, examples)}


def _passes(test: Any, make: Any, examples: list[Any]) -> bool:
    wanted = inspect.signature(test).parameters
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            test(**dict(_fixtures(make, examples, wanted, monkeypatch)))
        except Exception:
            return False
    return True


def _fixtures(make: Any, examples: list[Any], wanted: Any, monkeypatch: Any) -> Iterator[tuple[str, Any]]:
    handler: ModelHandler = make()
    given = {
        "handler": lambda: handler,
        "examples": lambda: [list(example) for example in examples],
        "loaded": lambda: LoadedHandler(handler, handler.load_model(), given["examples"](), given["inference_args"]()),
        "bad_example": lambda: BAD,
        "mixed_examples": lambda: [*map(list, examples[:2]), [], BAD],
        "inference_args": lambda: {"an": "argument"},
        "monkeypatch": lambda: monkeypatch,
        "request": lambda: SimpleNamespace(getfixturevalue=lambda _: make()),
    }
    return ((name, given[name]()) for name in wanted)


def test_a_suite_with_too_few_examples_fails():
    assert failing(HandlerContract(), DoublingHandler, EXAMPLES[:3]) == {"test_four_examples_or_more"}
