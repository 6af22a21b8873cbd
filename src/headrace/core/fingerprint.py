"""What decides a handler's predictions, and digests of values by their content, the same in every process.

Equal digests mean that values cannot be told apart. Equal values may have different digests (1 and 1.0, dicts in
another order). Of functions and classes, the code and the plain values of the names that it uses count, unless they
belong to Python, Headrace or an installed package: of those, the name.
"""

from __future__ import annotations

import copyreg
import hashlib
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace.core.errors import ConfigurationError

_NO_MATTER = frozenset(
    (
        *("namespace", "num_retries", "throttle_delay_secs", "retry_filter", "rate_limiter"),
        *("window_ms", "bucket_ms", "overload_ratio", "requests_per_minute", "tokens_per_minute"),
        *("_batches", "max_concurrent", "_has_worked", "throttler", "logger", "throttled_secs"),
        *("max_batch_size", "min_batch_size"),
        *("_batching_kwargs", "_sort_by_length", "_large_model", "_model_copies", "_share_across_processes"),
        *("get_preprocess_fns", "get_postprocess_fns", "should_skip_batching", "init_kwargs", "spec_type"),
    )
)
"""Attributes of Headrace's and Beam's handlers that say when and how to ask, not what."""
_SECRET = re.compile(r"api_?key|(access|auth|bearer|hf|secret)_?(key|token)|password|secret|credential", re.IGNORECASE)
_MOST_FILES = 10_000
_SIZE = 32

_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: b"%d" % value,
    float: lambda value: struct.pack(">d", value),
    complex: lambda value: struct.pack(">dd", value.real, value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: bytes,
    bytearray: bytes,
}
_OF_A_CLASS = (FunctionType, staticmethod, classmethod, property)


def fingerprint(value: Any) -> bytes:
    """A digest of 32 bytes.

    Raises:
        TypeError: the value, or a part of it, has no content that could be read: a lock, a socket, a generator, or
            anything else that does not pickle; or it contains itself.
        Exception: whatever the value's own ``__reduce__`` raises.
    """
    walk = _Walk()
    try:
        walk.add(value)
    except RecursionError:
        raise TypeError(f"a {type(value).__qualname__} is nested too deeply to be told from others.") from None
    return walk.digest()


class _Walk:
    """Feeds a value's parts to a hash, each with its type and length, so that no two values give the same bytes."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_SIZE)
        self.digest = self._hash.digest
        self._within: set[int] = set()
        """The ids of the containers that are being read."""
        self._code: set[int] = set()
        """The ids of the functions and classes that have been read."""

    def add(self, value: Any) -> None:
        """Adds a value."""
        kind = type(value)
        plain = _PLAIN.get(kind)
        if plain is not None:
            self._leaf(kind.__name__, plain(value))
            return
        if isinstance(value, type):
            self._class(value)
            return
        if kind is FunctionType:
            self._function(value)
            return
        if id(value) in self._within:
            raise TypeError(f"a {kind.__qualname__} contains itself.")
        self._within.add(id(value))
        self._add(kind, value)
        self._within.discard(id(value))

    def _add(self, kind: type, value: Any) -> None:
        if kind in (list, tuple):
            self._parts(kind.__name__, value)
        elif kind is dict:
            self._parts("dict", [part for pair in value.items() for part in pair])
        elif kind in (set, frozenset):
            self._parts(kind.__name__, sorted(map(fingerprint, value)))
        elif kind in (BuiltinFunctionType, ModuleType):
            self._leaf("name", _name(value).encode())
        elif kind is MethodType:
            self._parts("method", [value.__func__, value.__self__])
        elif kind is partial:
            self._parts("partial", [value.func, value.args, value.keywords])
        else:
            self._reduced(value)

    def _leaf(self, kind: str, content: bytes) -> None:
        self._hash.update(b"%s %d:" % (kind.encode(), len(content)))
        self._hash.update(content)

    def _parts(self, kind: str, parts: Iterable[Any]) -> None:
        parts = list(parts)
        self._hash.update(b"%s %d(" % (kind.encode(), len(parts)))
        for part in parts:
            self.add(part)

    def _reduced(self, value: Any) -> None:
        """Adds what pickle would need to make it again."""
        reduce = copyreg.dispatch_table.get(type(value))
        made: Any = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        if isinstance(made, str):
            self._leaf("name", f"{type(value).__module__}.{made}".encode())
            return
        function, args, state, items, pairs = (*made, None, None, None)[:5]
        self._parts("object", [function, args, state, list(items or ()), [*map(tuple, pairs or ())]])

    def _function(self, function: Any) -> None:
        self._leaf("name", _name(function).encode())
        if id(function) in self._code or is_installed(function):
            return
        self._code.add(id(function))
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._parts("function", [function.__defaults__, function.__kwdefaults__, cells])
        self._bytecode(function.__code__)
        for name in sorted(_names_in(function.__code__) & function.__globals__.keys()):
            self._global(name, function.__globals__[name])

    def _bytecode(self, code: CodeType) -> None:
        nested = [part for part in code.co_consts if isinstance(part, CodeType)]
        plain = [part for part in code.co_consts if not isinstance(part, CodeType)]
        self._parts("code", [code.co_code, plain, code.co_names, code.co_varnames, len(nested)])
        for part in nested:
            self._bytecode(part)

    def _global(self, name: str, value: Any) -> None:
        """Adds the value of a name that a function uses, if it is plain data or other code."""
        if isinstance(value, (FunctionType, type)):
            self.add(value)
        elif type(value) in _PLAIN or type(value) in (list, tuple, dict, set, frozenset):
            with suppress(TypeError):  # what it holds has no content: a lock, a client
                self._leaf(name, fingerprint(value))

    def _class(self, cls: type) -> None:
        self._leaf("name", _name(cls).encode())
        if id(cls) in self._code or is_installed(cls):
            return
        self._code.add(id(cls))
        for base in cls.__bases__:
            self._class(base)
        for name, attribute in sorted(vars(cls).items()):
            value = getattr(attribute, "__wrapped__", attribute)  # of a decorator, such as functools.cache
            if isinstance(value, property):
                self._parts(name, [one for one in (value.fget, value.fset) if one is not None])
            elif isinstance(value, _OF_A_CLASS):
                self._parts(name, [getattr(value, "__func__", value)])
            elif not name.startswith("__"):
                self._global(name, value)


def _names_in(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)}"


def is_installed(code: Any) -> bool:
    """Whether a function or a class belongs to Python, to Headrace or to an installed package."""
    name = getattr(code, "__module__", None) or ""
    package = name.partition(".")[0]
    if package == "headrace" or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_installed_folders())


@cache
def _installed_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


def default_cache_key(handler: Any) -> list[Any]:
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
            key.append((name, fingerprint(value), file_stamps(value)))
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
    stamps: list[tuple[str, int, int]] = []
    for path in _files(os.fspath(value)):
        found = os.stat(path)
        stamps.append((os.path.relpath(path, value), found.st_size, found.st_mtime_ns))
        if len(stamps) > _MOST_FILES:
            raise ValueError(f"{value} has more than {_MOST_FILES:,} files")
    return stamps


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))
