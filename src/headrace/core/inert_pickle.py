"""Reads a pickle, or a file of joblib, without running any of its code: objects become inert things with their state.

Nothing is imported, and no class or function that the file names is called.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import pickle
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, ClassVar

_COMPRESSED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZ": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
    b"\x5d\x00": partial(lzma.decompress, format=lzma.FORMAT_ALONE),
    b"\x78": zlib.decompress,
}
"""How joblib compresses, by the first bytes of a file."""
_MAKERS = ("_reconstructor", "__newobj__", "__newobj_ex__")
"""Of ``copyreg``: functions whose first argument is the class of the object."""


class Inert:
    """Stands in for an object of any class: keeps what it was made of, and its state; not what it contains."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any, **_options: Any) -> Inert:
        """Keeps the arguments of whatever would have been called."""
        made = object.__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, _item: Any) -> None:
        """Nothing."""

    extend = add = update = append

    @property
    def kind(self) -> str:
        """The name of the object's class, with its module."""
        cls = type(self)
        if cls.__name__ in _MAKERS and self.arguments and isinstance(self.arguments[0], type):
            cls = self.arguments[0]
        return f"{cls.__module__}.{cls.__qualname__}"

    def attribute(self, name: str) -> Any:
        """An attribute of the object's state; None if there is none."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class PickledModel:
    """What a file holds; raises an Exception if that is no pickle, or refers to what only its own code would know.

    Attributes:
        content: the object; Inert, unless it is a number, a text, a list, a tuple, a dict or None.
        needs_joblib: whether only joblib can load it.
    """

    def __init__(self, file: BinaryIO) -> None:
        head = file.read(6)
        file.seek(0)
        decompress = next((how for magic, how in _COMPRESSED.items() if head.startswith(magic)), None)
        self.needs_joblib = decompress is not None
        if decompress is not None:
            file = io.BytesIO(decompress(file.read()))
        try:
            self.content = _Plain(file).load()
        except _OfJoblibError:
            file.seek(0)
            self.needs_joblib = True
            self.content = _Joblib(file).load()


class _OfJoblibError(Exception):
    """Arrays stand beside the pickle, as only joblib writes them."""


def _stand_in(module: str, name: str) -> type[Inert]:
    return type(name.rpartition(".")[2], (Inert,), {"__module__": module, "__qualname__": name})


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "joblib.numpy_pickle":
            raise _OfJoblibError
        return _stand_in(module, name)


_InPython: Any = pickle._Unpickler
"""Reads a pickle as joblib does: only in Python can a file have other bytes between the objects."""


class _Joblib(_InPython):  # type: ignore[misc]
    """Passes over the arrays, whose bytes follow the object that describes them."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        return _stand_in(module, name)

    def load_build(self) -> None:
        """Replaces the description of an array by its elements if they are objects, and else passes over them."""
        super().load_build()
        array = self.stack[-1]
        if not (isinstance(array, Inert) and array.kind == "joblib.numpy_pickle.NumpyArrayWrapper"):
            return
        code, size = _item(array.attribute("dtype"))
        if code == "O":
            self.stack[-1] = type(self)(self._file).load()
            return
        if array.attribute("numpy_array_alignment_bytes") is not None:
            self._file.seek(self._file.read(1)[0], io.SEEK_CUR)
        self._file.seek(size * math.prod(array.attribute("shape")), io.SEEK_CUR)

    dispatch[pickle.BUILD[0]] = load_build


def _item(dtype: Inert) -> tuple[str, int]:
    """The letter of a pickled dtype, and the bytes of an element: the state has those that the letter leaves open."""
    code = dtype.arguments[0]
    size = dtype.state[5] if isinstance(dtype.state, tuple) else -1
    return code[0], size if size > 0 else int(code[1:])
