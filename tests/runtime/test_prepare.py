"""Wrong options are refused at once; options without effect warn once."""

from __future__ import annotations

import apache_beam.ml.inference.base as incumbent
import pytest

from headrace import (
    ConfigurationError,
    EngineModelHandler,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    PlacementConfig,
)
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, catching, isolated, prepare


class Handler(ModelHandler):
    def load_model(self):
        raise AssertionError("a model must not load at construction")

    def run_inference(self, batch, model, inference_args=None):
        return batch


class Engine(EngineModelHandler):
    load_model = Handler.load_model

    async def submit(self, example, model, inference_args=None):
        return example


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        ("handler", {}, "no model handler"),
        (Handler, {}, "no model handler"),
        (None, {}, "no model handler"),
        (Handler(), {"batching": {"max_batch_size": 3}}, "batching must be a BatchingConfig"),
        (Handler(), {"retry": 3}, "retry must be a RetryConfig, not 3"),
        (Handler(), {"budget": 3}, "budget must be a Budget, not 3"),
    ],
)
def test_argument_of_another_type_is_refused(handler, options, said):
    with pytest.raises(ConfigurationError, match=said):
        prepare(handler, InferenceRequest(**options))


@pytest.mark.parametrize("given", ["ValueError", [ValueError], (ValueError, 3), int])
def test_caught_must_be_exception_classes(given):
    with pytest.raises(ConfigurationError, match="exc_class must be"):
        catching(prepare(Handler(), InferenceRequest()), given)


@pytest.mark.parametrize(
    ("asks", "placement", "shared", "copies", "automatic"),
    [
        ({}, None, False, 1, False),
        ({"large_model": True}, None, True, 1, False),
        ({"model_copies": 1}, None, True, 1, False),
        ({"model_copies": 3}, None, True, 3, False),
        ({"model_copies": 3}, "process", False, 1, False),
        ({"large_model": True}, PlacementConfig("process"), False, 1, False),
        ({}, "machine", True, 1, False),
        ({}, "auto", True, 1, True),
        ({"model_copies": 2}, "machine", True, 2, False),
    ],
)
@pytest.mark.parametrize(
    "base",
    [
        Handler,
        pytest.param(
            incumbent.ModelHandler,
            marks=pytest.mark.since_beam("2.72", reason="Beam's ModelHandler takes none of these arguments before"),
        ),
    ],
)
def test_models_that_are_shared(base, asks, placement, shared, copies, automatic):
    spec = prepare(base(**asks), InferenceRequest(placement=placement))
    assert (spec.shared, spec.copies, spec.automatic) == (frozenset([ONLY] if shared else []), copies, automatic)
    assert spec.is_hosted_or_shared == shared


def test_unusable_runtime_directory_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    prepare(Handler(), InferenceRequest())
    with pytest.raises(ConfigurationError, match="HEADRACE_RUNTIME_DIR"):
        prepare(Handler(large_model=True), InferenceRequest())


@pytest.mark.parametrize(
    ("options", "isolated", "timeout"),
    [
        ({}, False, None),
        ({"placement": PlacementConfig()}, False, None),
        ({"placement": "process"}, False, None),
        ({"isolate": True}, True, None),
        ({"placement": PlacementConfig("process", isolate=True)}, True, None),
        ({"timeout_secs": 3}, True, 3),
        ({"timeout_secs": 0.5, "isolate": True}, True, 0.5),
    ],
)
def test_options_that_isolate(options, isolated, timeout):
    spec = prepare(Handler(), InferenceRequest(**options))
    assert (spec.isolated, spec.timeout_secs) == (isolated, timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, -1, float("inf"), float("nan"), "5", [5], True])
def test_timeout_must_be_a_positive_number(timeout):
    with pytest.raises(ConfigurationError, match="timeout must be a positive number of seconds, not "):
        prepare(Handler(), InferenceRequest(timeout_secs=timeout))
    with pytest.raises(ConfigurationError, match="timeout must be a positive number of seconds, not "):
        isolated(prepare(Handler(), InferenceRequest()), timeout)


ROWS = (row for row in ())


class Holding(Handler):
    """Has an attribute that does not pickle."""

    def __init__(self, **loaded_model):
        super().__init__()
        self.connections = loaded_model


def test_attribute_that_does_not_pickle_is_named():
    handler = Holding(main=(row for row in ()))
    assert not prepare(handler, InferenceRequest()).isolated
    with pytest.raises(
        ConfigurationError, match=r"^Holding cannot go .* Holding\.connections, of type dict,.* load_model"
    ):
        prepare(handler, InferenceRequest(isolate=True))


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (KeyedModelHandler([KeyModelMapping(["a"], Handler()), KeyModelMapping(["b"], Holding(x=ROWS))]), {}),
        (Handler().with_preprocess_fn(lambda element: next(ROWS)), {}),
        (Handler(), {"inference_args": {"rows": ROWS}}),
    ],
    ids=["inner handler", "function", "argument"],
)
def test_other_parts_that_do_not_pickle_are_refused(handler, options):
    with pytest.raises(ConfigurationError, match=r"does not pickle .*generator"):
        prepare(handler, InferenceRequest(isolate=True, **options))


class Sharing(Engine):
    def share_model_across_processes(self):
        return True


@pytest.mark.parametrize(
    ("engine", "placement", "is_shared"),
    [
        (Engine(large_model=True), None, True),
        (Sharing(), None, True),
        (Engine(), "machine", True),
        (Engine(large_model=True), "auto", True),
        (Engine(large_model=True), "process", False),
        (Engine(), "auto", False),  # nobody knows how much it takes
        (Engine(), None, False),
    ],
)
def test_engine_that_processes_share_is_in_a_host(engine, placement, is_shared):
    spec = prepare(engine, InferenceRequest(placement=placement, timeout_secs=7))
    assert (spec.shared, spec.isolated, spec.timeout_secs) == ({ONLY} if is_shared else set(), is_shared, 7)


def test_engine_beside_other_models_is_not_shared():
    mappings = [KeyModelMapping(["a"], Engine(large_model=True)), KeyModelMapping(["b"], Handler())]
    with pytest.raises(ConfigurationError, match="give the other models a transform of their own"):
        prepare(KeyedModelHandler(mappings), InferenceRequest())
    mappings[0] = KeyModelMapping(["a"], Handler(large_model=True))
    assert prepare(KeyedModelHandler(mappings), InferenceRequest()).shared == {"a"}
    mappings[0] = KeyModelMapping(["a"], Engine())
    assert prepare(KeyedModelHandler(mappings), InferenceRequest(placement="machine")).shared == {"b"}
