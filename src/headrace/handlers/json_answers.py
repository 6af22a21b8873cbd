"""Answers of language models that are to be JSON of a certain shape."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from headrace.core.conversion import is_deep
from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import open_uri

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\s*```", re.DOTALL)


class InvalidAnswerError(ValueError):
    """A model or its endpoint answered with something else than it was asked for."""

    is_page = False
    """Whether it answered with no JSON at all, but the page of a web site, say."""


class Fields(SimpleNamespace):
    """A JSON object with attributes, as the clients' objects have; those that are missing are None."""

    def __getattr__(self, _: str) -> None:
        return None

    def __repr__(self) -> str:
        """As the JSON, for errors that show it."""
        return repr(vars(self))


def text_in(content: Any) -> str:
    """The text in an answer; InvalidAnswerError if it is something else."""
    if not isinstance(content, str):
        raise InvalidAnswerError(f"the answer's content is no text: {content!r:.200}")
    return content


class JsonSchema:
    """Reads answers that must fit a JSON schema.

    Args:
        schema: the schema, or the path or URI of a file with it.
        caller: the handler's class, for errors.
        extra: of Headrace, which brings the validator.

    Raises:
        ConfigurationError: it is no schema.
        MissingExtraError: the package jsonschema is not installed.
        OSError: the file cannot be opened.
    """

    def __init__(self, schema: Mapping[str, Any] | str | os.PathLike[str], caller: str, extra: str) -> None:
        with extra_required(extra):
            import jsonschema  # noqa: PLC0415 - only handlers with a schema need it

        self._who = caller
        self.schema: dict[str, Any] = _read(schema, caller)
        try:
            jsonschema.validators.validator_for(self.schema).check_schema(self.schema)
        except jsonschema.SchemaError as error:
            raise ConfigurationError(f"{caller}: json_schema is no JSON schema: {error.message:.300}") from None

    def read(self, answer: str) -> Any:
        """The value in an answer; a fence of Markdown around it is ignored.

        Raises:
            InvalidAnswerError: it is no JSON, or does not fit the schema; says what is wrong.
            ConfigurationError: the schema refers to another that cannot be found.
        """
        import jsonschema  # noqa: PLC0415 - as above
        import referencing  # noqa: PLC0415 - as above

        fenced = _FENCED.fullmatch(answer.strip())
        # The registry is empty, so that a reference to another place fetches nothing.
        validator = jsonschema.validators.validator_for(self.schema)(self.schema, registry=referencing.Registry())
        try:
            value = json.loads(fenced[1] if fenced else answer, parse_constant=_refuse)
            if is_deep(value):
                raise RecursionError
            worst = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except (ValueError, ArithmeticError) as error:  # the latter of a number beyond any float
            raise InvalidAnswerError(f"the answer is no JSON: {error}") from None
        except RecursionError:
            raise InvalidAnswerError(f"the answer is nested too deeply: {answer[:300]!r}") from None
        except referencing.exceptions.Unresolvable as error:
            lost = f"json_schema refers to {error.ref!r}, which is not in it; put it under '$defs'."
            raise ConfigurationError(f"{self._who}: {lost}") from None
        if worst is not None:
            raise InvalidAnswerError(f"the answer does not fit the schema: at {worst.json_path}, {worst.message:.300}")
        return value

    def complaint(self, error: BaseException) -> str:
        """What to tell a model whose answer was wrong."""
        wanted = f"nothing but JSON that fits this schema: {json.dumps(self.schema)}"
        return f"This cannot be used: {error}. Answer again, with {wanted}"


def _read(schema: Mapping[str, Any] | str | os.PathLike[str], caller: str) -> dict[str, Any]:
    if isinstance(schema, str | os.PathLike):
        with open_uri(os.fspath(schema)) as file:
            try:
                schema = json.loads(file.read())
            except ValueError as error:
                raise ConfigurationError(f"{caller}: the file of json_schema is no JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"{caller}: json_schema must be a dict, such as {{'type': 'object'}}, or the path of a file with one, not "
            f"{schema!r:.80}."
        )
    return dict(schema)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no value of JSON")
