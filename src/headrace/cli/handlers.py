"""Finds the handler that a command line names, and makes it."""

from __future__ import annotations

import enum
import importlib.metadata
import inspect
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from headrace.cli.objects import import_object, with_objects
from headrace.core.errors import ConfigurationError, MissingExtraError, as_type_name
from headrace.core.secrets import SECRET_ARGUMENTS
from headrace.core.spelling import did_you_mean, nearest, no_file

GROUP = "headrace.handlers"
"""The entry points that are handlers."""


def make_handler(
    name: str,
    arguments: dict[str, Any],
    model: str | None = None,
    named: Mapping[str, str] | None = None,
    model_parameter: str | None = None,
) -> Any:
    """Finds a factory and makes a handler with it.

    Args:
        name: of an entry point, or ``package.module:factory``.
        arguments: for the factory, by name.
        model: for ``model_parameter``, else for the parameter that the factory's ``model_parameter`` names, else
            for ``model``, else for its first.
        named: arguments with an option of their own, by name; None: the command has no such options.
        model_parameter: a parameter's name, if it is known of the model's file.

    Raises:
        ConfigurationError: it cannot be found or made; the message says why, and lists the known names.
    """
    factory = _find(name)
    parameters = _parameters(factory)
    if model is not None:
        taken = parameters.get(model_parameter or "") or parameter_of_model(factory, parameters)
        arguments = {**arguments, **_model_argument(name, factory, taken, model, arguments)}
    for argument, value in (named or {}).items():
        _refuse_named(name, parameters, argument, arguments)
        arguments = {**arguments, argument: value}
    arguments = {key: _as_member(key, parameters.get(key), value) for key, value in arguments.items()}
    _refuse_unknown(name, parameters, arguments)
    _refuse_lack(name, factory, parameters, arguments, has_url=named is not None)
    arguments = with_objects(factory, arguments)
    try:
        return factory(**arguments)
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{_how_to_give(str(error), parameters, arguments)}") from error
    except Exception as error:
        raise ConfigurationError(f"{name} cannot be made: {as_type_name(error)}: {error}") from error


def parse_arguments(option: str, pairs: Iterable[str] | None) -> dict[str, Any]:
    """``key=value`` pairs; a value is JSON if it parses as such, else text.

    Raises:
        ConfigurationError: a pair has no ``=``, or a key is given twice.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ConfigurationError(f"{option} takes key=value, not {pair!r}.")
        if key in arguments:
            raise ConfigurationError(f"{option} {key} is given twice.")
        arguments[key] = _parse(value)
    return arguments


def handler_names() -> list[str]:
    """The names of the installed handlers."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)})


def factory_place(name: str) -> tuple[str, str] | None:
    """The module and the name in it of the factory that a command line names; None if there is no such handler."""
    entries = [entry.value for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == name]
    module, colon, attribute = (entries[0] if entries and ":" not in name else name).partition(":")
    return (module, attribute) if colon else None


def _find(name: str) -> Callable[..., Any]:
    place = factory_place(name)
    if place is None:
        raise ConfigurationError(no_handler(name))
    factory = import_object(":".join(place), "--handler")
    if not callable(factory):
        raise ConfigurationError(f"{name} is not callable; name a class, or a function that makes a handler.")
    return factory  # type: ignore[no-any-return]


def no_handler(name: str) -> str:
    """That there is no handler of a name, and which there are."""
    names = handler_names()
    module, dot, factory = name.rpartition(".")
    own = f"{module}:{factory}" if dot and factory != "py" else "package.module:factory"
    if nearest(name, names):
        return (
            f"there is no handler {name!r}{did_you_mean(name, names)} `headrace handlers` lists them all; write one of "
            f"your own as {own}."
        )
    return f"there is no handler {name!r}; there are {', '.join(names)}, and your own, written as {own}."


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some callables of C have no signature
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def _model_argument(
    name: str, factory: Callable[..., Any], taken: inspect.Parameter | None, model: str, arguments: Collection[str]
) -> dict[str, Any]:
    if taken is None or taken.kind in (taken.VAR_POSITIONAL, taken.VAR_KEYWORD, taken.POSITIONAL_ONLY):
        raise ConfigurationError(f"{name} has no parameter for --model; leave --model out.")
    if taken.name in arguments:
        raise ConfigurationError(f"--model and --handler-arg {taken.name} are the same; give one of them.")
    has_ids = ":" in name or getattr(factory, "models_have_ids", False)  # a factory of the user's may take anything
    is_file = taken.name.endswith(("_uri", "_path", "_state")) and not has_ids
    if is_file and "://" not in model and not os.path.exists(model):
        raise ConfigurationError(f"--model: {no_file(model)}")
    return {taken.name: model}


def parameter_of_model(
    factory: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> inspect.Parameter | None:
    """The parameter that ``--model`` sets: the one that the factory names, else its first; None: it has none."""
    named = parameters.get(getattr(factory, "model_parameter", "model"))
    return named or next(iter(parameters.values()), None)


def _refuse_named(
    name: str, parameters: Mapping[str, inspect.Parameter], argument: str, arguments: Collection[str]
) -> None:
    """Refuses an argument that has an option of its own, if the factory does not take it or it is given twice."""
    option = f"--{argument.replace('_', '-')}"
    if argument not in parameters and not (_takes_any(parameters) and ":" in name):
        raise ConfigurationError(f"{name} has no parameter for {option}; leave {option} out.")
    if argument in arguments:
        raise ConfigurationError(f"{option} and --handler-arg {argument} are the same; give one of them.")


def _as_member(name: str, parameter: inspect.Parameter | None, value: Any) -> Any:
    """The member that a text names, if the parameter's default is a member of an enumeration."""
    default = parameter.default if parameter is not None else None
    if not isinstance(default, enum.Enum) or not isinstance(value, str) or isinstance(default, str):
        return value
    members = {member.name.lower(): member for member in type(default)}
    if value.lower() not in members:
        raise ConfigurationError(f"--handler-arg {name} takes {', '.join(members)}, not {value!r}.")
    return members[value.lower()]


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _refuse_unknown(name: str, parameters: Mapping[str, inspect.Parameter], arguments: Collection[str]) -> None:
    for argument in arguments:
        if argument not in parameters and not _takes_any(parameters):
            known, end = ", ".join(parameters) or "nothing", did_you_mean(argument, parameters)
            raise ConfigurationError(f"--handler-arg: {name} has no parameter {argument!r}{end} It takes {known}.")


def _refuse_lack(
    name: str,
    factory: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    arguments: Collection[str],
    *,
    has_url: bool,
) -> None:
    """Names a missing argument by its option (``--url``, if there is one) before the factory is called."""
    of_model = parameter_of_model(factory, parameters)
    for one in parameters.values():
        is_needed = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if is_needed and one.name not in arguments:
            is_url = has_url and one.name == "url"
            option = "--url, where the endpoint is" if is_url else f"--handler-arg {one.name}=VALUE"
            if one is of_model:
                option = f"--model, where the model is (its parameter {one.name!r})"
            raise ConfigurationError(f"{name} needs {option}.")


def _how_to_give(message: str, parameters: Iterable[str], given: Iterable[str]) -> str:
    """A sentence with the option for a parameter that a handler misses, if its message names one."""
    candidates = [name for name in parameters if name not in given and name not in SECRET_ARGUMENTS]
    missed = next((name for name in candidates if re.search(rf"\b{name}\b", message)), None)
    if missed is None:
        return ""
    return f" Give it with --handler-arg {missed}=VALUE; a class or a function is written as package.module:name."


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
