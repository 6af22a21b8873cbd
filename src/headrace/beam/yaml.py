"""``type: RunInference`` in Beam YAML pipelines: handlers by name, and failed rows as YAML has them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.python_callable import PythonCallableWithSource

from headrace.beam.results import DeadLetterRows
from headrace.beam.transform import RunInference
from headrace.core.errors import ConfigurationError
from headrace.core.keyed import KeyedModelHandler
from headrace.core.result import PredictionResult
from headrace.core.spelling import did_you_mean, factory_place, handler_names, no_handler, unknown_arguments
from headrace.rows.examples import ExampleOfRow, Examples

_RESULT = RowTypeConstraint.from_fields([("example", Any), ("inference", Any), ("model_id", str | None)])
_SOURCES = ({"callable"}, {"path", "name"})
"""The keys of what stands for a function or a class."""
_CATCHING = {"threshold", "timeout", "use_subprocess"}
"""What ``error_handling`` takes besides ``output``."""
_GOOD = "good"
"""Beam's name for the output of what did not fail."""


class YamlRunInference(beam.PTransform):
    """Adds a field to each row: what a model says of it.

    A Beam YAML pipeline calls it ``RunInference``::

        providers:
          - type: python
            config: {}
            transforms:
              RunInference: headrace.beam.yaml.YamlRunInference

    Args:
        model_handler: ``type`` names a handler, as ``headrace handlers`` and ``headrace run --handler`` do
            (``sklearn-pandas``), by its class (``HuggingFacePipelineModelHandler``), or as ``package.module:factory``.
            ``config`` has its parameters, and perhaps ``preprocess`` and ``postprocess``: functions from a row to the
            handler's example, and from a prediction to the field. A function or a class is ``callable: SOURCE``, or
            ``path: FILE`` and ``name: NAME``.
        inference_tag: the name of the field. It holds the prediction, a row of ``example``, ``inference`` and
            ``model_id`` for most handlers, or what ``postprocess`` makes of it.
        inference_args: arguments of the model's call.
        columns: without ``preprocess``, the fields that the model sees, in this order; all by default.
        error_handling: ``output`` names the output of rows that fail, as ``element``, ``msg`` and ``stack``; besides it
            ``threshold``, ``timeout`` (seconds) and ``use_subprocess`` of ``RunInference.with_exception_handling``.

    Raises:
        ConfigurationError: an argument is wrong; the message says what to do.
    """

    def __init__(
        self,
        model_handler: Mapping[str, Any],
        inference_tag: str = "inference",
        inference_args: Mapping[str, Any] | None = None,
        columns: Sequence[str] | str | None = None,
        error_handling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._handler, self._before, self._after = _made(_plain(model_handler))
        self._tag = str(inference_tag)
        self._arguments = _plain(inference_args)
        self._columns = None if columns is None else tuple(_plain([columns] if isinstance(columns, str) else columns))
        self._catching = dict(_plain(error_handling or {}))
        self._bad = self._catching.pop("output", None)
        if error_handling and not self._bad:
            raise ConfigurationError("error_handling needs output, the name of the output of rows that fail.")
        if self._bad == _GOOD:
            raise ConfigurationError(f"error_handling: the output {_GOOD!r} is that of the predictions; name another.")
        if unknown := self._catching.keys() - _CATCHING:
            raise unknown_arguments("error_handling", unknown, {"output", *_CATCHING})

    def expand(self, rows: beam.PCollection) -> Any:
        """One RunInference, whose keys are the rows."""
        fields = named_fields_from_element_type(rows.element_type)
        example_of = self._before or self._example_of([name for name, _ in fields])
        handler: Any = KeyedModelHandler(self._handler).with_preprocess_fn(lambda row: (row, example_of(row)))
        after = self._after
        if after is not None:
            handler = handler.with_postprocess_fn(lambda pair: (pair[0], after(pair[1])))
        run = RunInference(handler, inference_args=self._arguments)
        if not self._bad:
            return self._with_field(rows | run, fields)
        answered, failed = rows | run.with_exception_handling(**self._catching)
        letter = RowTypeConstraint.from_fields([("element", rows.element_type), ("msg", str), ("stack", str)])
        bad = failed | DeadLetterRows() | beam.Map(_failed).with_output_types(letter)
        return {_GOOD: self._with_field(answered, fields), self._bad: bad}

    def _with_field(self, answered: beam.PCollection, fields: Sequence[tuple[str, Any]]) -> beam.PCollection:
        """The rows with their predictions, in a field that is a row if the handler says so."""
        tag, (_, said) = self._tag, getattr(answered.element_type, "tuple_types", (Any, Any))
        is_row = self._after is None and getattr(said, "_fields", None) == PredictionResult._fields
        added = (tag, _RESULT if is_row else Any)
        types = RowTypeConstraint.from_fields([*(field for field in fields if field[0] != tag), added])
        add = beam.Map(lambda pair: beam.Row(**{**pair[0]._asdict(), tag: pair[1]}))
        return answered | add.with_output_types(types)

    def _example_of(self, fields: Sequence[str]) -> Callable[[Any], Any]:
        for name in self._columns or ():
            if name not in fields:
                raise ConfigurationError(f"columns: the rows have no field {name!r}{did_you_mean(name, fields)}")
        example_of = ExampleOfRow(Examples(self._columns, tuple(fields)), self._handler)
        return lambda row: example_of(row._asdict())


def _plain(value: Any) -> Any:
    """A value of YAML without what Beam's reader adds: a mapping's line and id, and text that knows its line."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items() if key not in ("__line__", "__uuid__")}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _made(spec: Any) -> tuple[Any, Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    if not isinstance(spec, Mapping) or "type" not in spec or spec.keys() - {"type", "config"}:
        raise ConfigurationError(f"model_handler takes type, a handler's name, and config, not {spec!r}.")
    arguments = {name: _loaded(name, value) for name, value in (spec.get("config") or {}).items()}
    before, after = arguments.pop("preprocess", None), arguments.pop("postprocess", None)
    try:
        return _factory(str(spec["type"]))(**arguments), before, after
    except TypeError as error:
        raise ConfigurationError(f"model_handler {spec['type']}: {error}") from error


def _factory(name: str) -> Callable[..., Any]:
    classes = {place[1]: place for place in map(factory_place, handler_names()) if place is not None}
    place = factory_place(name) or classes.get(name)
    if place is None:
        raise ConfigurationError(no_handler(name))
    module, attribute = place
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigurationError(f"model_handler {name}: {error}") from error
    return found


def _loaded(name: str, value: Any) -> Any:
    """The function or class that a parameter's source or file stands for; any other value as it is."""
    if name in ("preprocess", "postprocess") and not (isinstance(value, Mapping) and set(value) in _SOURCES):
        raise ConfigurationError(f"{name} takes callable, or path and name, not {value!r}.")
    if not isinstance(value, Mapping) or set(value) not in _SOURCES:
        return value
    if "callable" in value:
        return PythonCallableWithSource(value["callable"])
    with FileSystems.open(value["path"]) as file:
        return PythonCallableWithSource.load_from_script(file.read().decode(), value["name"])


def _failed(letter: Any) -> beam.Row:
    """A dead letter as other transforms of Beam YAML write it."""
    row = letter.element if letter.key is None else letter.key
    return beam.Row(element=row, msg=f"{letter.error_type}: {letter.message}", stack=letter.traceback)
