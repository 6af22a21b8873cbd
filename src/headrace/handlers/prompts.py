"""What a language model is asked, made of examples and of rows; and answers that are to be JSON of a certain shape."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from types import SimpleNamespace
from typing import Any

from headrace.core.conversion import is_deep
from headrace.core.errors import ConfigurationError, as_type_name, extra_required
from headrace.core.files import open_uri

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\s*```", re.DOTALL)
ROLES = ("system", "user", "assistant", "developer", "tool")
_COLUMN = "messages"
"""The column of a row that holds a conversation."""
_BRACES = "Write a literal brace twice: '{{' or '}}'."


class Prompts:
    """Makes prompts and conversations of examples.

    Args:
        caller: the handler's class, for errors.
        template: a prompt with the names of columns in braces, as in ``str.format``: "Classify: {text}"; None: examples
            are prompts, or conversations.
        system: the first message of conversations that do not begin with one of their own.

    Raises:
        ConfigurationError: the template is none.
    """

    def __init__(self, caller: str, template: str | None = None, system: str | None = None) -> None:
        if system is not None and not isinstance(system, str):
            raise ConfigurationError(f"{caller}: system must be a text, not {system!r:.80}.")
        self.caller = caller
        self.template = template
        self.system = system
        self.columns = [] if template is None else _columns_of(caller, template)
        """The columns that the template names."""

    def text(self, example: Any) -> str:
        """The prompt of an example: of a text itself, of a row what the template makes of it."""
        if isinstance(example, str):
            return example
        if not isinstance(example, Mapping):
            raise TypeError(f"an example must be a text, or a row with prompt=, not {example!r:.80}.")
        if self.template is None:
            raise TypeError(
                f"the example is a row ({', '.join(map(str, example))}); give {self.caller} prompt='... {{column}} "
                "...', which makes a prompt of it."
            )
        return self.rendered(example)

    def conversation(self, example: Any) -> tuple[str | None, list[dict[str, Any]]]:
        """The system message, if there is one, and the other messages."""
        if isinstance(example, str | Mapping) or not isinstance(example, Sequence):
            return self.system, [{"role": "user", "content": self.text(example)}]
        messages = list(map(as_message, example))
        system = self.system
        if messages and messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
        if not messages:
            raise ValueError("the conversation has no messages to answer.")
        return system, messages

    def rendered(self, row: Mapping[str, Any]) -> str:
        """What the template makes of a row; ValueError if a column of it is missing, or empty."""
        for column in self.columns:
            if column not in row:
                raise ValueError(f"the prompt needs a column {column!r}; the row has {', '.join(map(str, row))}.")
            if row[column] is None or (isinstance(row[column], str) and not row[column]):
                raise ValueError(f"column {column!r}, which the prompt needs, is empty.")
        try:
            return (self.template or "").format_map(row)
        except (AttributeError, LookupError, TypeError) as error:  # of "{column[key]}"
            raise ValueError(f"the row lacks what the prompt needs: {as_type_name(error)}: {error}") from error


def _columns_of(caller: str, template: str) -> list[str]:
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{caller}: prompt is no template: {error}. {_BRACES}") from None
    columns = [re.split(r"[.\[]", name)[0] for name in fields]
    if not columns or any(not column or column.isdigit() for column in columns):
        raise ConfigurationError(
            f"{caller}: prompt must name a column of each row in braces, such as 'Classify: {{text}}', and "
            f"{template!r:.80} does not. {_BRACES} Leave prompt out if examples are prompts."
        )
    return columns


class PromptRows:
    """What handlers make of rows, by their ``_prompts``."""

    _prompts: Prompts
    _takes_conversations: bool = True

    def columns_of_rows(self) -> list[str]:
        """The columns that the prompt takes from a row; empty without a prompt."""
        return self._prompts.columns

    def refuse_columns(self, columns: Sequence[str]) -> None:
        """Raises ConfigurationError if it is not clear which of the columns is the prompt."""
        is_conversation = self._takes_conversations and (_COLUMN in columns or set(columns) <= set(ROLES))
        if self._prompts.template is None and len(columns) > 1 and not is_conversation:
            raise ConfigurationError(_which_column(columns))

    def example_from_row(self, row: Mapping[str, Any]) -> Any:
        """The prompt of a row: what ``prompt`` makes of it, its only column, or a conversation.

        A row is a conversation if it has a column for each message, named as its role, or one column "messages".
        """
        if self._prompts.template is not None:
            return self._prompts.rendered(row)
        if self._takes_conversations and isinstance(row.get(_COLUMN), list):
            return row[_COLUMN]
        if self._takes_conversations and len(row) > 1 and set(row) <= set(ROLES):
            said = {role: text for role, text in row.items() if text not in (None, "")}
            return [{"role": role, "content": _as_text(role, text)} for role, text in said.items()]
        if len(row) != 1:
            raise ValueError(_which_column(row))
        ((column, value),) = row.items()
        return _as_text(column, value)


def _which_column(columns: Iterable[Any]) -> str:
    return (
        f"choose one column with the prompt (--columns, in Python columns=) of {', '.join(map(str, columns))}, or make "
        "the prompt of several: --prompt '... {column} ...'."
    )


def _as_text(column: Any, value: Any) -> str:
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"column {column!r} holds {value!r:.80}, which is no text.")
    if not value:
        raise ValueError(f"column {column!r}, which is the prompt, is empty.")
    return value


def as_message(message: Any) -> dict[str, Any]:
    """A message as a dict, of a dict or an object such as ``OpenAIChatMessage``; TypeError if it has no role."""
    fields = {name: getattr(message, name) for name in ("role", "content") if hasattr(message, name)}
    plain = dict(message) if isinstance(message, Mapping) else fields
    if "role" not in plain:
        raise TypeError(f"a message must be a dict with 'role' and 'content', not {message!r:.80}.")
    return plain


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

        self._caller = caller
        given: Any = schema
        if isinstance(schema, str | os.PathLike):
            with open_uri(os.fspath(schema)) as file:
                given = file.read()
        try:
            self.schema: dict[str, Any] = {**(json.loads(given) if isinstance(given, bytes) else given)}
            jsonschema.validators.validator_for(self.schema).check_schema(self.schema)
        except (TypeError, ValueError, jsonschema.SchemaError) as error:
            raise ConfigurationError(
                f"{caller}: json_schema is no JSON schema, such as {{'type': 'object'}}, nor the path of a file with "
                f"one: {getattr(error, 'message', error)!s:.300}"
            ) from None

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
            raise ConfigurationError(f"{self._caller}: {lost}") from None
        if worst is not None:
            raise InvalidAnswerError(f"the answer does not fit the schema: at {worst.json_path}, {worst.message:.300}")
        return value

    def complaint(self, error: BaseException) -> str:
        """What to tell a model whose answer was wrong."""
        wanted = f"nothing but JSON that fits this schema: {json.dumps(self.schema)}"
        return f"This cannot be used: {error}. Answer again, with {wanted}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no value of JSON")
