"""What decides a handler's predictions, and digests of values by their content, the same in every process.

Equal digests mean that values cannot be told apart. Equal values may have different digests (1 and 1.0, dicts in
another order). Of functions and classes, the code and the plain values of the names that it uses count, unless they
belong to Python, Headrace or an installed package: of those, the name, and what a function was made for.
"""

from __future__ import annotations

import copyreg
import hashlib
import os
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.files import files_below
from headrace.core.remote import HOW_TO_SEND

_NO_MATTER = HOW_TO_SEND.union(
    (
        *("_batches", "_has_worked", "throttler", "logger", "throttled_secs", "max_batch_size", "min_batch_size"),
        *("_batching_kwargs", "_sort_by_length", "_large_model", "_model_copies", "_share_across_processes"),
        *("get_preprocess_fns", "get_postprocess_fns", "should_skip_batching", "init_kwargs", "spec_type"),
    )
)
"""Attributes of Headrace's and Beam's handlers that say when and how to ask, not what."""
_SECRET = re.compile(r"api_?key|(access|auth|bearer|hf|secret)_?(key|token)|password|secret|credential", re.IGNORECASE)
_MOST_FILES = 10_000
_SIZE = 32
_GROWING = frozenset(("_value2member_map_",))
"""Attributes of classes that change as they are used: an ``enum.Flag`` remembers the combinations that were made."""
_DATA = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset))
_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    MethodType: lambda method: ("method", method.__func__, method.__self__),
    ModuleType: lambda module: ("module", module.__name__),
    pickle.PickleBuffer: lambda buffer: ("buffer", bytes(buffer.raw())),
}
"""What is written in place of what does not pickle."""
_OF_A_CLASS = (FunctionType, staticmethod, classmethod, property)
_Reducers = Mapping[type, Callable[[Any], Any]]


def fingerprint(value: Any, reducers: _Reducers = copyreg.dispatch_table) -> bytes:
    """A digest of 32 bytes; ``reducers`` are a pickler's ``dispatch_table``.

    Raises:
        TypeError: a part of the value has no content that could be read, as a lock or a socket; or it contains itself.
        Exception: whatever the value's own ``__reduce__`` raises.
    """
    return _digest(value, reducers, set())


def _digest(value: Any, reducers: _Reducers, seen: set[int]) -> bytes:
    content = hashlib.blake2b(digest_size=_SIZE)
    try:
        _Content(content.update, reducers, seen).dump(value)
    except RecursionError:
        raise TypeError(f"a {type(value).__qualname__} is nested too deeply to be told from others.") from None
    except ValueError as error:
        if "cyclic" not in str(error):
            raise
        raise TypeError(f"a {type(value).__qualname__} contains itself.") from None
    return content.digest()


class _Content(pickle.Pickler):
    """Writes a value's pickle, with sets in one order, and with code in place of the names of functions and classes.

    ``seen`` has the ids of those that have been written, also by a pickler that this one is a part of.
    """

    def __init__(self, write: Callable[[bytes], object], reducers: _Reducers, seen: set[int]) -> None:
        super().__init__(SimpleNamespace(write=write), protocol=4)
        self.fast = True  # equal parts are written alike, be they one object or two
        self.dispatch_table = reducers
        self._seen = seen

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in (set, frozenset):
            return kind.__name__, sorted(self._digest(part, {*self._seen}) for part in value)  # in any order
        if kind in _PARTS:
            return _PARTS[kind](value)
        if kind is not FunctionType and not isinstance(value, type):
            return None
        closure = getattr(value, "__closure__", None) or ()
        if id(value) in self._seen or (is_installed(value) and not closure):
            return "name", _name(value)
        self._seen.add(id(value))
        if is_installed(value):
            return "made", _name(value), [part for cell in closure for part in self._named("", cell.cell_contents)]
        return "code", _name(value), self._function(value) if kind is FunctionType else self._class(value)

    def _function(self, function: Any) -> list[Any]:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        used = sorted(_names_in(function.__code__) & function.__globals__.keys())
        values = [part for name in used for part in self._named(name, function.__globals__[name])]
        return [function.__defaults__, function.__kwdefaults__, cells, _bytecode(function.__code__), values]

    def _class(self, cls: type) -> list[Any]:
        parts: list[Any] = [*cls.__bases__]
        for name, attribute in sorted(vars(cls).items()):
            value = getattr(attribute, "__wrapped__", attribute)  # of a decorator, such as functools.cache
            if isinstance(value, property):
                parts += [name, *(one for one in (value.fget, value.fset) if one is not None)]
            elif isinstance(value, _OF_A_CLASS):
                parts += [name, getattr(value, "__func__", value)]
            elif not name.startswith("__") and name not in _GROWING:
                parts += self._named(name, value)
        return parts

    def _named(self, name: str, value: Any) -> list[Any]:
        """The value of a name that a function or class uses, if it is plain data or other code."""
        if isinstance(value, (FunctionType, type)):
            return [name, value]
        with suppress(TypeError):  # what it holds has no content: a lock, a client
            return [name, self._digest(value, self._seen)] if type(value) in _DATA else []
        return []

    def _digest(self, part: Any, seen: set[int]) -> bytes:
        return _digest(part, self.dispatch_table, seen)


def _bytecode(code: CodeType) -> list[Any]:
    constants = [_bytecode(part) if isinstance(part, CodeType) else part for part in code.co_consts]
    return [code.co_code, constants, code.co_names, code.co_varnames]


def _names_in(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)}"


def is_installed(code: Any) -> bool:
    """Whether a function or a class belongs to Python, to Headrace or to an installed package."""
    name = getattr(code, "__module__", None) or ""
    package = name.partition(".")[0]
    if name == "__main__":  # the user's, though in a worker another file has that name
        return False
    if package == "headrace" or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_installed_folders())


@cache
def _installed_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


def default_cache_key(handler: Any, reducers: _Reducers = copyreg.dispatch_table) -> list[Any]:
    """The handler's class and its attributes, without secrets and without those that decide no prediction.

    Of an attribute that names a local file or folder, sizes and times of the files count, too.

    Raises:
        ConfigurationError: an attribute has no content that could be compared.
    """
    key: list[Any] = [type(handler)]
    for name, value in sorted(getattr(handler, "__dict__", {}).items()):
        if name in _NO_MATTER or _SECRET.search(name):
            continue
        try:
            key.append((name, fingerprint(value, reducers), file_stamps(value)))
        except Exception as error:
            cls = type(handler).__qualname__
            raise ConfigurationError(
                f"cache= needs to know what decides the predictions of {cls}, and its attribute {name!r} cannot be "
                f"compared ({type(error).__name__}: {error}). Give {cls} a method cache_key() that returns what does, "
                "such as its endpoint, its model and its parameters."
            ) from error
    return key


def file_stamps(value: Any) -> list[tuple[str, int, int]]:
    """If a text names a local file or folder: each file's path within it, size in bytes, and time in nanoseconds."""
    if not isinstance(value, str | os.PathLike) or not os.path.exists(value):
        return []
    stamps = []
    for path in files_below(os.fspath(value)) if os.path.isdir(value) else [os.fspath(value)]:
        found = os.stat(path)
        stamps.append((os.path.relpath(path, value), found.st_size, found.st_mtime_ns))
        if len(stamps) > _MOST_FILES:
            raise ValueError(f"{value} has more than {_MOST_FILES:,} files")
    return sorted(stamps)
