"""Finds the handlers, classes and functions that a command line names, and makes handlers."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace.core.declared_type import evaluated
from headrace.core.errors import ConfigurationError, MissingExtraError, as_type_name
from headrace.core.secrets import SECRET_ARGUMENTS
from headrace.core.spelling import did_you_mean, factory_place, handler_names, no_file, no_handler

_PLACE = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
"""What may name an object; the module may be a file by mistake."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
        model: for ``model_parameter``, else for the parameter that ``parameter_of_model`` finds.
        named: arguments with an option of their own, by name; None: the command has no such options.
        model_parameter: a parameter's name, if it is known of the model's file.

    Raises:
        ConfigurationError: it cannot be found or made; the message says why, and lists the known names.
    """
    factory = _Factory(name)
    if model is not None:
        taken = factory.parameters.get(model_parameter or "") or factory.of_model
        arguments = {**arguments, factory.parameter_for(taken, model, arguments): model}
    for argument, value in (named or {}).items():
        factory.refuse_option(argument, arguments)
        arguments = {**arguments, argument: value}
    arguments = {key: factory.member(key, value) for key, value in arguments.items()}
    factory.refuse_mismatch(arguments, has_url=named is not None)
    arguments = _with_objects(factory.call, arguments)
    try:
        return factory.call(**arguments)
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{_how_to_give(str(error), factory.parameters, arguments)}") from error
    except Exception as error:
        raise ConfigurationError(f"{name} cannot be made: {as_type_name(error)}: {error}") from error


def parse_arguments(option: str, pairs: Iterable[str] | None) -> dict[str, Any]:
    """``key=value`` pairs, each key once; a value is JSON if it parses as such, else text."""
    arguments: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ConfigurationError(f"{option} takes key=value, not {pair!r}.")
        if key in arguments:
            raise ConfigurationError(f"{option} {key} is given twice.")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return arguments


def handlers_like(incomplete: str) -> list[str]:
    """The names that a shell completes."""
    return [name for name in handler_names() if name.startswith(incomplete)]


def parameter_of_model(
    factory: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> inspect.Parameter | None:
    """The parameter that ``--model`` sets: the one that the factory names, else its first; None: it has none."""
    named = parameters.get(getattr(factory, "model_parameter", "model"))
    return named or next(iter(parameters.values()), None)


class _Factory:
    """What makes a handler, and which arguments it takes."""

    def __init__(self, name: str) -> None:
        place = factory_place(name)
        if place is None:
            raise ConfigurationError(no_handler(name))
        self.name = name
        self.call = import_object(":".join(place), "--handler")
        if not callable(self.call):
            raise ConfigurationError(f"{name} is not callable; name a class, or a function that makes a handler.")
        try:
            self.parameters = dict(inspect.signature(self.call).parameters)
        except (TypeError, ValueError):  # some callables of C have no signature
            self.parameters = {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}
        self.of_model = parameter_of_model(self.call, self.parameters)
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in self.parameters.values())

    def parameter_for(self, taken: inspect.Parameter | None, model: str, arguments: Mapping[str, Any]) -> str:
        if taken is None or taken.kind in (*_VARIADIC, taken.POSITIONAL_ONLY):
            raise ConfigurationError(f"{self.name} has no parameter for --model; leave --model out.")
        if taken.name in arguments:
            raise ConfigurationError(f"--model and --handler-arg {taken.name} are the same; give one of them.")
        has_ids = ":" in self.name or getattr(self.call, "models_have_ids", False)  # one's own may take anything
        is_file = taken.name.endswith(("_uri", "_path", "_state")) and not has_ids
        if is_file and "://" not in model and not os.path.exists(model):
            raise ConfigurationError(f"--model: {no_file(model)}")
        return taken.name

    def refuse_option(self, argument: str, arguments: Mapping[str, Any]) -> None:
        """Refuses an argument that has an option of its own, if the factory does not take it or it is given twice."""
        option = f"--{argument.replace('_', '-')}"
        if argument not in self.parameters and not (self.takes_any and ":" in self.name):
            raise ConfigurationError(f"{self.name} has no parameter for {option}; leave {option} out.")
        if argument in arguments:
            raise ConfigurationError(f"{option} and --handler-arg {argument} are the same; give one of them.")

    def member(self, argument: str, value: Any) -> Any:
        """The member that a text names, if the parameter's default is a member of an enumeration."""
        default = self.parameters[argument].default if argument in self.parameters else None
        if not isinstance(default, enum.Enum) or not isinstance(value, str) or isinstance(default, str):
            return value
        members = {member.name.lower(): member for member in type(default)}
        if value.lower() not in members:
            raise ConfigurationError(f"--handler-arg {argument} takes {', '.join(members)}, not {value!r}.")
        return members[value.lower()]

    def refuse_mismatch(self, arguments: Mapping[str, Any], *, has_url: bool) -> None:
        """Names an argument that the factory does not take or that it lacks, by its option if it has one."""
        for argument in arguments:
            if argument not in self.parameters and not self.takes_any:
                known, end = ", ".join(self.parameters) or "nothing", did_you_mean(argument, self.parameters)
                raise ConfigurationError(
                    f"--handler-arg: {self.name} has no parameter {argument!r}{end} It takes {known}."
                )
        for one in self.parameters.values():
            if one.default is not one.empty or one.kind in _VARIADIC or one.name in arguments:
                continue
            option = f"--handler-arg {one.name}=VALUE"
            if one is self.of_model:
                option = f"--model, where the model is (its parameter {one.name!r})"
            elif has_url and one.name == "url":
                option = "--url, where the endpoint is"
            raise ConfigurationError(f"{self.name} needs {option}.")


def _how_to_give(message: str, parameters: Iterable[str], given: Mapping[str, Any]) -> str:
    """A sentence with the option for a parameter that a handler misses, if its message names one."""
    candidates = [name for name in parameters if name not in given and name not in SECRET_ARGUMENTS]
    missed = next((name for name in candidates if re.search(rf"\b{name}\b", message)), None)
    if missed is None:
        return ""
    return f" Give it with --handler-arg {missed}=VALUE; a class or a function is written as package.module:name."


def search_here() -> None:
    """Lets imports find modules in the working directory."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_object(place: str, option: str) -> Any:
    """The object that ``package.module:name`` names.

    Raises:
        ConfigurationError: there is none; the message names the option, the cause and the cure.
    """
    search_here()
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(_why_not_imported(module, name, option, error)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module} has no {name!r}{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    return found


def _with_objects(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a factory, with objects in place of their names where its annotations ask for classes or functions.

    A parameter that takes functions as well as texts keeps the text.
    """
    return {
        name: _object(f"--handler-arg {name}", value, _kinds(factory, name)) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _object(option: str, text: str, kinds: set[Any]) -> Any:
    if type not in kinds and (Callable not in kinds or str in kinds):
        return text
    if not _PLACE.fullmatch(text):
        if str in kinds:
            return text
        raise ConfigurationError(f"{option} takes a class or a function, as package.module:name, not {text!r}.")
    try:
        found = import_object(text, option)
    except ConfigurationError as error:
        raise type(error)(f"{option}={text}: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{option}={text}: that is {found!r:.80}, and no class or function.")
    return found


def _kinds(factory: Callable[..., Any], name: str) -> set[Any]:
    """``type``, ``Callable`` and ``str``, as far as a parameter takes such; empty without an annotation."""
    for function in _constructors(factory):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None:
            hint = evaluated(parameter.annotation, function.__globals__)
            is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
            kinds = [typing.get_origin(one) or one for one in (typing.get_args(hint) if is_union else (hint,))]
            return {Callable if kind is typing.Callable else kind for kind in kinds}
    return set()


def _constructors(factory: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """The function that is called; of a class its constructors, to which ``**options`` are passed on in this order."""
    given = [vars(base).get("__init__") for base in factory.__mro__] if isinstance(factory, type) else [factory]
    for one in given:
        function = inspect.unwrap(getattr(one, "__func__", one)) if one is not None else None
        if isinstance(function, types.FunctionType):
            yield function


def _why_not_imported(module: str, name: str, option: str, error: Exception) -> str:
    if module.endswith(".py"):
        path = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        return f"{option.split(maxsplit=1)[0]} takes a module, not its file {module!r}; write {path}:{name}."
    message = f"cannot import {module}: {as_type_name(error)}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        message += f"; modules are looked for in this folder, {os.getcwd()}, and among the installed packages"
    return message
