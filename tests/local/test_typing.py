"""What type checkers know of ``predict`` and ``RunInference``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace import predict
from headrace.beam import RunInference
from headrace.beam.transform import InferenceOptions, WatchOptions
from headrace.local.predict import PredictOptions

CODE = '''
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import assert_type

import headrace
from headrace.beam import RunInference


class Length(headrace.ModelHandler[str, float, Any]):
    def run_inference(self, batch, model, inference_args=None):  # type: ignore[no-untyped-def]
        return map(len, batch)


class Alone:
    """Derived from no handler of ours, like Beam's."""

    def load_model(self) -> None: ...

    def run_inference(
        self, batch: Sequence[str], model: None, inference_args: dict[str, Any] | None = None
    ) -> Iterable[bytes]:
        return []


def classify(length: float) -> int:
    return round(length)


handler, texts = Length(), ["a"]
assert_type(headrace.predict(handler, texts), Iterator[float])
assert_type(headrace.predict(handler, texts, on_failure="raise", ordered=False), Iterator[float])
assert_type(headrace.predict(handler, texts, on_failure="yield", timeout=1), Iterator[float | headrace.Failure])
assert_type(headrace.predict(handler.with_postprocess_fn(classify), texts), Iterator[int])
assert_type(headrace.predict(Alone(), texts), Iterator[bytes])
assert_type(headrace.predict(Alone(), texts, on_failure="yield"), Iterator[bytes | headrace.Failure])
keyed: headrace.KeyedModelHandler[str, str, float, Any] = headrace.KeyedModelHandler(handler)
assert_type(headrace.predict(keyed, [("k", "a")]), Iterator[tuple[str, float]])
assert_type(RunInference(handler), RunInference[str, float])
assert_type(RunInference(handler).with_exception_handling(timeout=1), RunInference[str, float])
RunInference(handler, watch_model_pattern="*.pt", interval=10, isolate=True)
'''
WRONG = [
    ('headrace.predict(handler, texts, on_failure="ignore")', "call-overload"),
    ("headrace.predict(handler, texts, timeuot=1)", "call-overload"),
    ('headrace.predict(handler, texts, timeout="1")', "call-overload"),
    ("RunInference(handler, timeout=1)", "call-overload"),
    ('RunInference(handler, interval="soon")', "call-overload"),
    ("handler.with_postprocess_fn(str.upper)", "arg-type"),
]


@pytest.mark.large
def test_type_checker_knows_options_and_results(tmp_path):
    from mypy import api

    source = tmp_path / "typed.py"
    source.write_text(CODE + "".join(f"{line}\n" for line, _ in WRONG))
    root = Path(__file__).parents[2]
    cache = root / ".mypy_cache"  # what `make types` has found of the sources
    found, errors, _ = api.run([f"--config-file={root / 'pyproject.toml'}", f"--cache-dir={cache}", str(source)])
    assert not errors
    first = CODE.count("\n") + 1
    lines = dict(re.findall(r"typed\.py:(\d+): error: .*\[([a-z-]+)\]", found))
    assert lines == {str(first + place): code for place, (_, code) in enumerate(WRONG)}, found


def test_options_for_type_checkers_are_those_that_there_are():
    options = options_of(predict)
    del options["on_failure"]
    assert written(PredictOptions) == options
    assert written(InferenceOptions) == {**options_of(RunInference), **written(WatchOptions)}


def options_of(function):
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}


def written(kind):
    """Annotations as they are written."""
    return {name: value.__forward_arg__ for name, value in kind.__annotations__.items()}
