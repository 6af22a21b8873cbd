"""What goes to another process and must arrive: handlers, and exceptions of whatever class."""

from __future__ import annotations

import builtins
import contextlib
import io
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial, partialmethod
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodType
from typing import Any, NamedTuple

import cloudpickle

from headrace.core.errors import ConfigurationError, as_type_name

_PROTOCOL = 5
_LONGEST_TEXT = 100_000  # characters of what stands for something that does not pickle
_MEMBERS = (GetSetDescriptorType, MemberDescriptorType)
_IS_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TEXTS = "_headrace_texts"
_PLAIN = (str, bytes, int, float, complex, bool)
_own: Callable[[BaseException], dict[str, Any]] = vars(BaseException)["__dict__"].__get__  # whatever its class may say
_args: Callable[[BaseException], tuple[Any, ...]] = vars(BaseException)["args"].__get__


def pickled(value: Any, name: str, part: Any = None) -> bytes:
    """The pickle of a value, for another process; functions and classes that cannot be imported there travel along.

    Args:
        value: a handler, or something that holds one.
        name: what an error calls it: the handler's class.
        part: of the value: the handler, if ``value`` is not it. What does not pickle is looked for in it first.

    Raises:
        ConfigurationError: it does not pickle; the message names the attribute, or variable, that is to blame.
    """
    try:
        content: bytes = cloudpickle.dumps(value, protocol=_PROTOCOL)
    except Exception as error:
        culprit = _Search().culprit(part, value, name)
        raise ConfigurationError(
            f"{name} cannot go to the process in which its model is to live: {culprit.where}, of type "
            f"{as_type_name(type(culprit.value))}, does not pickle ({as_type_name(error)}: {_text(str, error)}). Make "
            "it in load_model, which runs in that process; or do not hold it: leave it out of the constructor, or out "
            "of what __getstate__ returns."
        ) from error
    return content


class _Part(NamedTuple):
    """Something that a value is made of."""

    value: Any
    path: str
    function: str = ""
    """Whose variable the path begins with."""

    @property
    def where(self) -> str:
        return f"the variable `{self.path}` of the function {self.function}" if self.function else self.path

    def attribute(self, name: object, value: Any) -> _Part:
        return self._replace(value=value, path=f"{self.path}.{name}")

    def item(self, key: Any, value: Any) -> _Part:
        return self._replace(value=value, path=f"{self.path}[{(_text(repr, key) or '...')[:80]}]")


class _Search:
    """Looks for the innermost part of a value that does not pickle; gives up beyond so many parts, and so deep."""

    def __init__(self) -> None:
        self._parts_left = 5_000
        self._entered: dict[int, Any] = {}

    def culprit(self, part: Any, value: Any, name: str) -> _Part:
        start = _Part(value, name) if self._pickles(part) else _Part(part, type(part).__name__)
        with contextlib.suppress(Exception):  # parts are looked at in ways that their author may not have foreseen
            return self._find(start, depth=30) or start
        return start

    def _find(self, part: _Part, depth: int) -> _Part | None:
        """None: if it does not pickle, then only because of something that was entered before."""
        self._entered[id(part.value)] = part.value
        is_to_blame = True
        for inner in _parts(part) if depth else ():
            if id(inner.value) not in self._entered:
                if self._pickles(inner.value):
                    continue
                found = self._find(inner, depth - 1)
                if found:
                    return found
            is_to_blame = False
        return part if is_to_blame else None

    def _pickles(self, value: Any) -> bool:
        if type(value) in _PLAIN:
            return True
        self._parts_left -= 1
        try:
            if self._parts_left >= 0:
                cloudpickle.Pickler(_Nowhere(), _PROTOCOL).dump(value)
        except Exception:
            return False
        return True


class _Nowhere:
    """A file for trials: what may be a model's weights need not be held twice."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


_HELD = {
    FunctionType: ("__defaults__", "__kwdefaults__", "__dict__"),
    MethodType: ("__self__", "__func__"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    partial: ("func", "args", "keywords"),
}


def _parts(part: _Part) -> Iterator[_Part]:
    value = part.value
    if isinstance(value, FunctionType):
        function = value.__qualname__ if part.where == value.__qualname__ else f"{value.__qualname__} ({part.where})"
        yield from (_Part(held, name, function) for name, held in _variables(value).items())
    elif isinstance(value, dict):
        yield from (part.item(key, held) for key, held in value.items())
        yield from (_Part(key, f"a key of {part.where}") for key in value)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from (part.item(number, held) for number, held in enumerate(value))
    elif isinstance(value, type):
        yield from (_Part(base, base.__name__) for base in value.__bases__)
    yield from (part.attribute(name, held) for name, held in _attributes(value).items())
    yield _Part(type(value), type(value).__name__)


def _variables(function: FunctionType) -> dict[str, Any]:
    """What a function finds outside itself: its module's variables, and those of the functions around it."""
    known = function.__globals__
    variables = {name: known[name] for name in _names(function.__code__) if name in known}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # it has no value yet
            variables[name] = cell.cell_contents
    return variables


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, type):
        held = {name: kept for name, kept in vars(value).items() if not isinstance(kept, _MEMBERS)}
        return {**held, "_abc_impl": None}  # which is made anew, as members are
    for kind, names in _HELD.items():
        if isinstance(value, kind):
            return {name: getattr(value, name) for name in names}
    try:
        reduced = value.__reduce_ex__(_PROTOCOL)
    except Exception:
        return {}
    state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    states = state if isinstance(state, tuple) else (state,)  # those with __slots__ have two
    return {name: kept for each in states if isinstance(each, dict) for name, kept in each.items()}


def stand_ins(errors: Iterable[BaseException]) -> dict[type, Callable[[Any], Any]]:
    """How to pickle those exceptions that would not arrive on their own, or not as they are.

    A stand-in is of the same class, made without its constructor, with the ``args`` and attributes that pickle; an
    argument that does not is replaced by its repr. Where the class does not pickle, or could not tell any more what
    it told, the stand-in's class is made for it: of the same name, with the texts that the original had, derived from
    the class if that can be had, else from its nearest base that can. Exceptions within exceptions are seen to as well.

    Args:
        errors: those in one message. They are pickled and unpickled here, for trial.

    Returns:
        Reducers by exact class, for a pickler's ``dispatch_table`` (cloudpickle's looks at it when it is constructed,
        not later); to be kept no longer than the message, since they hold its exceptions.
    """
    inspection = _Inspection()
    for error in errors:
        inspection.stand_in(error)
    return {type(error): inspection.reduce for error, stand_in in inspection.seen.values() if stand_in is not None}


class _Inspection:
    """Finds out which exceptions arrive, and how the others could."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[BaseException, tuple[Any, ...] | None]] = {}
        """By id: each exception with its stand-in, in the form that a reducer returns; None: it needs none."""

    def reduce(self, error: BaseException) -> Any:
        stand_in = self.stand_in(error)
        return error.__reduce_ex__(_PROTOCOL) if stand_in is None else stand_in

    def stand_in(self, error: BaseException) -> tuple[Any, ...] | None:
        if id(error) not in self.seen:
            self.seen[id(error)] = error, (Exception, ())  # where something within it refers to it
            self.seen[id(error)] = error, None if self._arrives(error) else self._made(error)
        return self.seen[id(error)][1]

    def _arrives(self, error: BaseException) -> bool:
        try:
            return _is_alike(error, self._trip(error, root=error))
        except Exception:
            return False

    def _made(self, error: BaseException) -> tuple[Any, ...]:
        cls = type(error)
        args = tuple(arg if self._travels(arg) else _Described(_text(repr, arg) or "...") for arg in _args(error))
        fields = {name: value for name, value in _fields(error).items() if self._travels(value)}
        own = {name: value for name, value in _own(error).items() if self._travels(value)}
        described = _text(repr, error) or f"{cls.__qualname__}(...)"
        said = _text(str, error)
        texts = (described if said is None else said, described)
        bases = [base for base in cls.__mro__ if issubclass(base, BaseException)]
        for base, name in ((cls, None), *((base, (cls.__module__, cls.__qualname__)) for base in bases)):
            state = (args, fields, own if name is None else {**own, _TEXTS: texts})
            stand_in = (_blank, (base, name, *_in_group(base, fields)), state, None, None, _fill)
            self.seen[id(error)] = error, stand_in
            if self._tells_the_same(error):
                return stand_in
        return Exception, (texts[0],)

    def _travels(self, value: Any) -> bool:
        try:
            self._trip(value)
        except Exception:
            return False
        return True

    def _tells_the_same(self, error: BaseException) -> bool:
        """Whether its stand-in arrives and has words; the error's own, if it has any."""
        try:
            copy = self._trip(error)
        except Exception:
            return False
        own = _own_words(type(error))
        words = [(_words(render, error), _words(render, copy), render in own) for render in _RENDERS]
        return all(now is not None and (was in (None, now) or not matters) for was, now, matters in words)

    def _trip(self, value: Any, root: BaseException | None = None) -> Any:
        """What becomes of a value on its way; raises what pickling or unpickling it raises."""
        file = io.BytesIO()
        _Trial(file, self, root).dump(value)
        return pickle.loads(file.getbuffer())


class _Trial(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles exceptions as they are to travel; only ``root`` as it would on its own."""

    def __init__(self, file: io.BytesIO, inspection: _Inspection, root: BaseException | None) -> None:
        super().__init__(file, _PROTOCOL)
        self._inspection = inspection
        self._root = root

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            stand_in = None if obj is self._root else self._inspection.stand_in(obj)
            return NotImplemented if stand_in is None else stand_in
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # by value
            cloudpickle.dumps(obj)
            return _class_here, (cloudpickle.cloudpickle._get_or_create_tracker_id(obj),)
        return reduced


def _class_here(identity: str) -> Any:
    """A class that a trial has pickled by value; cloudpickle would put copies in place of all that it has."""
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[identity]


def _is_alike(error: BaseException, copy: BaseException) -> bool:
    """Whether a copy has the same class, arguments, attributes and words."""
    cls = type(error)
    if type(copy) is not cls or not _is_same(_args(error), _args(copy)):
        return False
    held, got = {**_fields(error), **_own(error)}, {**_fields(copy), **_own(copy)}
    has_all = all(name in got and _is_same(value, got[name]) for name, value in held.items())
    if not has_all and isinstance(cls.__reduce__, MethodDescriptorType):  # else its author left something out
        return False
    return all(_words(render, error) == _words(render, copy) for render in _own_words(cls))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same as far as one can see: what ``==`` says may be an array, or anything."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) not in _PLAIN or one == other or one != one  # noqa: PLR0124 - not a number


def _own_words(cls: type) -> list[Callable[[Any], str]]:
    """How a class renders its instances otherwise than by their arguments."""
    return [render for render, name in _RENDERS.items() if getattr(cls, name) is not vars(BaseException)[name]]


def _words(render: Callable[[Any], str], value: Any) -> str | None:
    """Its text, for comparison: less the addresses in memory that default reprs have."""
    text = _text(render, value)
    return text and re.sub("0x[0-9a-fA-F]+", "0x", text)


_RENDERS: dict[Callable[[Any], str], str] = {str: "__str__", repr: "__repr__"}


def _text(render: Callable[[Any], str], value: Any) -> str | None:
    """What something says of itself, at most so much of it; None if it cannot say."""
    try:
        return render(value)[:_LONGEST_TEXT]
    except Exception:
        return None


def _fields(error: BaseException) -> dict[str, Any]:
    """What an exception holds beside ``args`` and its dict: OSError's ``errno``, a subclass's ``__slots__``."""
    fields: dict[str, Any] = {}
    for base in type(error).__mro__:
        if base in (AttributeError, NameError, BaseException, object):  # what the first two hold may be the model
            continue
        for name, member in vars(base).items():
            if isinstance(member, _MEMBERS) and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(Exception):  # it has no value
                    fields.setdefault(name, member.__get__(error))
    return fields


def _in_group(cls: type, fields: dict[str, Any]) -> tuple[Any, ...]:
    """What a group of exceptions must be made with."""
    if _built_in(cls) is not getattr(builtins, "BaseExceptionGroup", None):
        return ()
    return fields["message"], list(fields["exceptions"])


def _built_in(cls: type) -> type:
    """The class of the interpreter's on which a class rests; only its ``__new__`` makes instances of the class."""
    while cls.__flags__ & _IS_MADE_AT_RUN_TIME:
        cls = cls.__base__ or object
    return cls


def _blank(cls: type, name: tuple[str, str] | None, *args: Any) -> Any:
    """A stand-in yet to be filled, so that what fills it may refer to it."""
    return _built_in(cls).__new__(cls if name is None else _class_named(cls, *name), *args)


def _fill(blank: Any, state: tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> None:
    args, fields, own = state
    vars(BaseException)["args"].__set__(blank, args)
    _own(blank).update(own)
    for name, value in fields.items():
        with contextlib.suppress(AttributeError, TypeError):  # those of a group cannot be set
            if getattr(blank, name, fields) is not value:
                object.__setattr__(blank, name, value)  # that of a frozen dataclass refuses


@lru_cache(maxsize=100)
def _class_named(base: type, module: str, qualname: str) -> type:
    """A class that looks like another; its instances say what they were given to say."""
    words = {name: partialmethod(_said, number) for number, name in enumerate(_RENDERS.values())}
    return type(base)(qualname.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": qualname, **words})


def _said(error: BaseException, number: int) -> Any:
    return _own(error)[_TEXTS][number]


class _Described(str):
    """Stands for an argument that does not pickle: its repr."""

    __slots__ = ()
    __repr__ = str.__str__


class HostTraceback(Exception):
    """Where an exception was raised in another process; its text is the traceback there."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"


def with_traceback_of(error: BaseException, lines: Iterable[str]) -> BaseException:
    """The same exception; when it is raised, ``lines``, of its traceback in another process, are shown as its cause.

    A single line, or none, is no traceback.
    """
    lines = list(lines)
    if len(lines) > 1:
        BaseException.__setattr__(error, "__cause__", HostTraceback("".join(lines)))  # even a frozen dataclass's
    return error
