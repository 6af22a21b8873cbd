"""The test suite that every handler passes, Headrace's own and third parties': subclass it and name a handler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

from headrace.core.config import BatchingConfig
from headrace.core.errors import extra_required
from headrace.core.keyed import KeyedModelHandler
from headrace.core.result import Failure
from headrace.testing.contract_tools import (
    LoadedHandler,
    Wrapped,
    batches_of,
    identical,
    infer,
    inference_of,
    mixtures,
    nearly_equal,
    objects_calling,
    pickled,
    run_predict,
    shown,
    unwrapped,
    wrapped,
)

with extra_required("test"):
    import pytest

_GIVEN = ("handler", "examples", "inference_args", "bad_example", "odd_examples")
_NONE_GIVEN = object()
_ENV_VAR = "HEADRACE_HANDLER_CONTRACT"
_THREADS = 4


def _as_fixture(given: Any) -> Any:
    """A fixture: a method becomes one, a fixture stays as it is, any other value becomes its result."""
    if not callable(given):
        return pytest.fixture(lambda _: given)
    try:
        return pytest.fixture(given)
    except ValueError:  # it is a fixture already
        return given


def _required(name: str) -> Any:
    def missing(self: HandlerContract) -> None:
        raise NotImplementedError(
            f"{type(self).__qualname__} must define {name!r}; see headrace.testing.HandlerContract."
        )

    return pytest.fixture(missing)


class HandlerContract:
    """What a model handler promises, as tests.

    A subclass, whose name starts with ``Test`` so that pytest finds it, gives:

    - ``handler``: a new handler, without preprocessing and postprocessing functions;
    - ``examples``: a list of at least four examples that the model tells apart and never skips;
    - ``inference_args`` (optional): extra arguments for the model's call;
    - ``bad_example`` (optional): one for which the model fails;
    - ``odd_examples`` (optional): a list of examples that users mix among the others, for which the model may fail: of
      another dtype, length or order, with gaps, empty;
    - ``equal(a, b)`` (optional): whether two predictions are the same; by default ``nearly_equal`` of their
      ``inference``.

    All but ``equal`` may be plain attributes, methods (whose arguments are pytest's fixtures) or fixtures. Each test
    loads the model; override the fixture ``model`` with a wider scope if that takes long.
    """

    handler: Any = _required("handler")
    examples: Any = _required("examples")
    inference_args: Any = _as_fixture(None)
    bad_example: Any = _as_fixture(_NONE_GIVEN)
    odd_examples: Any = _as_fixture(())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _GIVEN:
            if name in vars(cls):
                setattr(cls, name, _as_fixture(vars(cls)[name]))

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two predictions are the same; in batches, a model's last digits may differ."""
        return nearly_equal(inference_of(a), inference_of(b))

    @pytest.fixture
    def model(self, handler: Any) -> Any:
        """The handler's model, loaded as a worker would."""
        handler.set_environment_vars()
        return handler.load_model()

    @pytest.fixture
    def loaded(self, handler: Any, model: Any, examples: list[Any], inference_args: Any) -> LoadedHandler:
        """The handler with its model, the examples, and the ways to run it."""
        return LoadedHandler(handler, model, examples, inference_args)

    @pytest.fixture
    def mixed_examples(self, examples: list[Any], odd_examples: Sequence[Any], bad_example: Any) -> list[Any]:
        """Some examples of every sort that the subclass gives."""
        return [*examples[:2], *odd_examples, *([] if bad_example is _NONE_GIVEN else [bad_example])]

    def test_four_examples_or_more(self, examples: list[Any]) -> None:
        """Fewer prove little about batches."""
        assert len(examples) >= 4, "give at least 4 examples"

    def test_construction_loads_nothing(self, request: Any) -> None:
        """The machine that constructs a pipeline may have neither the memory nor the device for the model."""
        with objects_calling("load_model") as loading:
            handler = request.getfixturevalue("handler")
        assert not any(isinstance(it, type(handler)) for it in loading), "load_model ran during construction"

    def test_pickles(self, handler: Any, examples: list[Any], inference_args: Any) -> None:
        """A handler is pickled to the workers before it loads anything."""
        found, expected = (
            infer(one, examples, one.load_model(), inference_args) for one in (pickled(handler), handler)
        )
        self._assert_same(found, expected, "a pickled copy predicts something else")

    def test_pickles_after_loading(self, loaded: LoadedHandler) -> None:
        """Loading must not leave the model, or anything else that does not pickle, in the handler."""
        expected, copied = loaded.infer(), pickled(loaded.handler)
        found = infer(copied, loaded.examples, copied.load_model(), loaded.inference_args)
        self._assert_same(found, expected, "a copy pickled after loading predicts something else")

    def test_copies_share_a_model(self, handler: Any, examples: list[Any], inference_args: Any) -> None:
        """One copy of a handler loads and another runs: run_inference may need nothing that load_model sets."""
        runs, loads = pickled(handler), pickled(handler)
        found, expected = (infer(one, examples, loads.load_model(), inference_args) for one in (runs, loads))
        self._assert_same(found, expected, "a copy that did not load the model itself predicts something else")

    def test_one_prediction_for_each_example(self, loaded: LoadedHandler) -> None:
        """This holds for batches of every size, including smaller last ones."""
        sizes = range(1, len(loaded.examples) + 1)
        for batch in (batch for size in sizes for batch in batches_of(loaded.examples, size)):
            for example, prediction in zip(batch, loaded.infer(batch), strict=True):
                kept = getattr(prediction, "example", example)
                assert nearly_equal(kept, example), f"the prediction for {example!r} carries the example {kept!r}"

    def test_batched_equals_one_by_one(self, loaded: LoadedHandler) -> None:
        """An example's prediction does not depend on the others in its batch."""
        alone = [loaded.infer([example])[0] for example in loaded.examples]
        for size in range(2, len(alone) + 1):
            together = [one for batch in batches_of(loaded.examples, size) for one in loaded.infer(batch)]
            self._assert_same(together, alone, f"batches of {size} and of 1 predict differently")

    def test_predictions_follow_the_order_of_the_batch(self, loaded: LoadedHandler) -> None:
        """Reversed examples give reversed predictions."""
        forward, backward = loaded.infer(), loaded.infer(loaded.examples[::-1])
        self._assert_same(backward[::-1], forward, "predictions do not follow the order of the examples")

    def test_inputs_stay_as_they_are(self, loaded: LoadedHandler) -> None:
        """A failed batch is tried again, and other transforms see the same elements."""
        given = [pickled(example) for example in loaded.examples]
        batch, args = list(given), pickled(loaded.inference_args)
        infer(loaded.handler, batch, loaded.model, args)
        assert len(batch) == len(given), "run_inference changed the batch"
        assert all(map(identical, batch, given)), "run_inference changed the batch"
        assert all(map(identical, given, loaded.examples)), "run_inference changed an example"
        assert identical(args, loaded.inference_args), "run_inference changed inference_args"

    def test_same_batch_same_predictions(self, loaded: LoadedHandler) -> None:
        """A runner may repeat a bundle, and expects the same predictions."""
        first, second = loaded.infer(), loaded.infer()
        self._assert_same(second, first, "the same batch, run twice, gives different predictions")

    def test_threads_share_the_model(self, loaded: LoadedHandler) -> None:
        """A worker's threads run batches at the same time."""
        expected = loaded.infer()
        with ThreadPoolExecutor(_THREADS) as pool:
            runs = [pool.submit(loaded.infer) for _ in range(2 * _THREADS)]
        for run in runs:
            self._assert_same(run.result(), expected, "predictions change when several threads run")

    def test_num_bytes_grows_with_the_batch(self, handler: Any, examples: list[Any]) -> None:
        """Metrics count it as the size of the data."""
        sizes = [handler.get_num_bytes(examples[:n]) for n in range(1, len(examples) + 1)]
        assert all(type(size) is int and size > 0 for size in sizes), f"get_num_bytes must give positive ints: {sizes}"
        assert sizes == sorted(set(sizes)), f"get_num_bytes does not grow with the batch: {sizes}"

    def test_batching_options_are_known(self, handler: Any) -> None:
        """Options are those of BatchElements, with valid values."""
        BatchingConfig.from_kwargs(handler.batch_elements_kwargs(), handler)

    def test_metrics_namespace_is_a_name(self, handler: Any) -> None:
        """Beam refuses an empty namespace."""
        namespace = handler.get_metrics_namespace()
        assert isinstance(namespace, str), f"get_metrics_namespace() returned {namespace!r}"
        assert namespace, "get_metrics_namespace() returned an empty name"

    def test_resource_hints_are_a_dict(self, handler: Any) -> None:
        """Resource hints are a dict by name."""
        hints = handler.get_resource_hints()
        assert isinstance(hints, dict), f"get_resource_hints() returned {hints!r}"

    def test_predict_equals_calling_it(self, loaded: LoadedHandler) -> None:
        """The runtime adds nothing and loses nothing."""
        found = loaded.predict(loaded.examples)
        self._assert_same(found, loaded.infer(), "headrace.predict and run_inference predict differently")

    def test_functions_before_and_after(self, loaded: LoadedHandler) -> None:
        """with_preprocess_fn and with_postprocess_fn compose, and leave the handler itself as it was."""
        composed = loaded.handler.with_preprocess_fn(unwrapped).with_postprocess_fn(wrapped)
        found = loaded.predict(map(wrapped, loaded.examples), composed)
        assert all(isinstance(prediction, Wrapped) for prediction in found), "the postprocessing function did not run"
        self._assert_same([unwrapped(one) for one in found], loaded.infer(), "composing changes predictions")
        assert not loaded.handler.get_preprocess_fns(), "with_preprocess_fn changed the handler itself"

    def test_elements_that_are_batches(self, loaded: LoadedHandler) -> None:
        """with_no_batching passes batches on unchanged."""
        batches = [loaded.examples[:1], loaded.examples[1:]]
        found = loaded.predict(batches, loaded.handler.with_no_batching())
        self._assert_same(found, loaded.infer(), "with_no_batching changes predictions")

    def test_keys_are_kept(self, loaded: LoadedHandler) -> None:
        """A KeyedModelHandler returns each prediction with its key."""
        found = loaded.predict(enumerate(loaded.examples), KeyedModelHandler(loaded.handler))
        assert [key for key, _ in found] == list(range(len(loaded.examples))), "keys are lost"
        self._assert_same([prediction for _, prediction in found], loaded.infer(), "keys change predictions")

    def test_a_bad_example_fails_alone(self, loaded: LoadedHandler, bad_example: Any) -> None:
        """The other examples in its batch get their predictions."""
        if bad_example is _NONE_GIVEN:
            pytest.skip("the subclass gives no bad_example")
        found = loaded.outcomes([*loaded.examples[:2], bad_example, *loaded.examples[2:]])
        failed = [place for place, outcome in enumerate(found) if isinstance(outcome, Failure)]
        assert failed == [2], f"of {len(found)} elements, of which number 2 is bad, these failed: {failed}"
        self._assert_same(found[:2] + found[3:], loaded.infer(), "a bad neighbour changes predictions")

    def test_neighbours_change_no_outcome(self, loaded: LoadedHandler, mixed_examples: list[Any]) -> None:
        """An example has the same outcome alone, in pairs, and among all examples in any order."""
        elements = mixed_examples
        handler = copy(loaded.handler)
        handler.load_model = lambda: loaded.model
        alone = [loaded.outcomes([element], handler)[0] for element in elements]
        for places in mixtures(len(elements)):
            for place, found in zip(places, loaded.outcomes([elements[one] for one in places], handler), strict=True):
                assert self._same_outcome(found, alone[place]), (
                    f"alone, the outcome of {elements[place]!r} is {shown(alone[place])}, and beside "
                    f"{[elements[other] for other in places if other != place]!r:.500} it is {shown(found)}"
                )

    def test_env_vars_are_set_before_loading(
        self, handler: Any, examples: list[Any], inference_args: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``env_vars`` reach the environment before ``load_model`` runs, if the handler takes them."""
        if not hasattr(handler, "_env_vars"):
            return
        monkeypatch.setenv(_ENV_VAR, "not yet")
        seen: list[str] = []

        def load_model() -> Any:
            seen.append(os.environ[_ENV_VAR])
            return handler.load_model()

        watched = copy(handler)
        watched._env_vars = {_ENV_VAR: "set"}
        watched.load_model = load_model
        run_predict(watched, examples, inference_args=inference_args)
        assert seen == ["set"], "env_vars were not in the environment when load_model ran"

    def _same_outcome(self, a: Any, b: Any) -> bool:
        if isinstance(a, Failure) or isinstance(b, Failure):
            return isinstance(a, Failure) and isinstance(b, Failure)
        return self.equal(a, b)

    def _assert_same(self, found: Sequence[Any], expected: Sequence[Any], complaint: str) -> None:
        assert len(found) == len(expected), f"{complaint}: {len(found)} predictions, not {len(expected)}"
        for place, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert self.equal(a, b), f"{complaint}; example {place}: {inference_of(a)!r}, not {inference_of(b)!r}"
