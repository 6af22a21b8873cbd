"""Classes and functions that a command line names: ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.spelling import did_you_mean

_PLACE = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")
"""What may name an object; the module may be a file by mistake."""


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


def with_objects(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a factory, with the objects in place of their names where it takes classes or functions.

    Its annotations say where that is. A parameter that takes functions as well as texts keeps the text.

    Raises:
        ConfigurationError: a class or a function is needed, and the text names none.
    """
    return {
        name: _object(f"--handler-arg {name}", value, _kinds(factory, name)) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _object(option: str, text: str, kinds: set[Any]) -> Any:
    takes_class, takes_function, takes_text = type in kinds, Callable in kinds, str in kinds
    if not (takes_class or (takes_function and not takes_text)):
        return text
    if not _PLACE.fullmatch(text):
        if takes_text:
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
    for function in constructors(factory):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None:
            hint = _evaluated(parameter.annotation, function)
            return {_kind(one) for one in (typing.get_args(hint) if _is_union(hint) else (hint,))}
    return set()


def constructors(factory: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """The function that is called; of a class its constructors, to which ``**options`` are passed on in this order."""
    given = [vars(base).get("__init__") for base in factory.__mro__] if isinstance(factory, type) else [factory]
    for one in given:
        function = inspect.unwrap(getattr(one, "__func__", one)) if one is not None else None
        if isinstance(function, types.FunctionType):
            yield function


def _evaluated(annotation: Any, function: types.FunctionType) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, function.__globals__)["it"]
    except Exception:  # a name that only type checkers know, or anything that is no type
        return None


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _kind(hint: Any) -> Any:
    origin = typing.get_origin(hint) or hint
    return Callable if origin in (Callable, typing.Callable) else origin


def _why_not_imported(module: str, name: str, option: str, error: Exception) -> str:
    if module.endswith(".py"):
        path = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        return f"{option.split(maxsplit=1)[0]} takes a module, not its file {module!r}; write {path}:{name}."
    message = f"cannot import {module}: {as_type_name(error)}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        message += f"; modules are looked for in this folder, {os.getcwd()}, and among the installed packages"
    return message
