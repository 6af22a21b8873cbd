"""What a model's file says of itself: which handler runs it, and which columns it wants.

Packages add recognisers for their own files in the entry-point group ``headrace.models``: functions that take a
``ModelFile`` and return a ``KnownModel``, or None for files that are not theirs. For files that are theirs, but lack
something that the user has to give, they raise a ConfigurationError that says what. A recogniser must not import the
framework, nor run what is in the file: it also reads files that the user does not trust to run in this process.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.metadata
import io
import json
import lzma
import math
import mmap
import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.files import open_uri

GROUP = "headrace.models"
"""The entry points that are recognisers."""
_OURS = "headrace.handlers."
_HEAD = 4096
_PICKLES = re.compile(r"\.(pkl|pickle|joblib|sav)\b", re.IGNORECASE)
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
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


class KnownModel(NamedTuple):
    """How a model's file is run."""

    handler: str
    """The name of the handler's entry point in ``headrace.handlers``."""
    what: str
    """The model in a few words: "a scikit-learn Pipeline"."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """For the handler, besides the path; values are JSON."""
    path_parameter: str | None = None
    """The handler's parameter for the path; None: the one that ``--model`` sets."""
    columns: tuple[str, ...] | None = None
    """The columns that the model wants, in its order; None: it knows no names."""
    has_underscores: bool = False
    """Whether the names have an underscore for each space, as LightGBM writes them; the model takes any names."""
    takes: Literal["numbers", "text", "rows"] = "numbers"
    """What the model takes of a row, if it knows no names: its numbers, one text, or whatever the handler makes of it.
    """
    width: int | None = None
    """How many numbers; None: that is unknown, too."""

    def columns_of(self, given: Sequence[str]) -> tuple[str, ...]:
        """The columns that the model wants, as they are called among those that are given; of others its own names."""
        named = {name.replace(" ", "_"): name for name in given} if self.has_underscores else {}
        return tuple(named.get(name, name) for name in self.columns or ())


Recogniser = Callable[["ModelFile"], "KnownModel | None"]


class ModelFile:
    """A model's file or folder, at a path or a URI; what a recogniser asks for is read once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.name = os.path.basename(uri.rstrip("/"))
        self.suffix = os.path.splitext(self.name)[1].lower()
        self.is_folder = os.path.isdir(uri)
        self.head = b""
        """The first 4,096 bytes; none of a folder."""
        if not self.is_folder:
            with self.open() as file:
                self.head = file.read(_HEAD)

    def open(self) -> BinaryIO:
        """The file."""
        return open_uri(self.uri)

    @cached_property
    def content(self) -> bytes | mmap.mmap:
        """The whole file: mapped if it is local."""
        with self.open() as file:
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # it is not local, or empty
                return file.read()

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The names in the folder, or of all files in the zip archive; of any other file none."""
        if self.is_folder:
            return tuple(sorted(os.listdir(self.uri)))
        if self.head.startswith(_ZIP):
            with suppress(zipfile.BadZipFile), self.open() as archive, zipfile.ZipFile(archive) as files:
                return tuple(files.namelist())
        return ()

    def read(self, member: str) -> bytes:
        """The content of a file in the folder or the archive."""
        if self.is_folder:
            with open_uri(os.path.join(self.uri, member)) as file:
                return file.read()
        with self.open() as archive, zipfile.ZipFile(archive) as files:
            return files.read(member)

    def settings(self, member: str) -> dict[str, Any]:
        """The object in a JSON file of the folder or the archive; empty if it has no such file, or that no object."""
        with suppress(ValueError):
            found = json.loads(self.read(member)) if member in self.members else None
            return found if isinstance(found, dict) else {}
        return {}

    @cached_property
    def pickled(self) -> PickledModel | None:
        """What the pickle, or the file of joblib, holds: its code does not run. None if it is neither."""
        if self.is_folder or not (self.head.startswith(_PICKLE) or _PICKLES.search(self.name)):
            return None
        try:
            with self.open() as file:
                return PickledModel(file)
        except Exception as error:
            raise ConfigurationError(f"it cannot be read as a pickle: {as_type_name(error)}: {error}") from error


def recognise(model: ModelFile) -> KnownModel | None:
    """How the file is run; None if no installed package knows. Recognisers of other packages come before Headrace's.

    Raises:
        ConfigurationError: the file is known, and what is missing has to be given; or it is damaged.
    """
    entries = importlib.metadata.entry_points(group=GROUP)
    complaints: list[ConfigurationError] = []
    for entry in sorted(entries, key=lambda entry: entry.value.startswith(_OURS)):
        try:
            found: KnownModel | None = entry.load()(model)
        except ConfigurationError as error:
            complaints.insert(0, error)
        except Exception as error:
            said = f"it is damaged, or {entry.value} is: {as_type_name(error)}: {error}"
            complaints.append(ConfigurationError(said))
        else:
            if found is not None:
                return found
    if complaints:
        raise complaints[0]
    return None


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
    """What a pickle, or a file of joblib, holds: read without running any of its code, or importing what it names.

    Raises an Exception if it is neither, or refers to what only its own code would know.

    Attributes:
        content: the object; Inert, unless it is a number, a text, a list, a tuple, a dict or None.
        needs_joblib: whether only joblib can load it.
    """

    def __init__(self, file: BinaryIO) -> None:
        head = file.read(6)
        file.seek(0)
        decompress = next((how for magic, how in _COMPRESSED.items() if head.startswith(magic)), None)
        reader = _Reader(io.BytesIO(decompress(file.read())) if decompress else file)
        self.content = reader.load()
        self.needs_joblib = decompress is not None or reader.has_arrays


_InPython: Any = pickle._Unpickler
"""Reads a pickle as joblib does: only in Python can a file have other bytes between the objects."""


class _Reader(_InPython):  # type: ignore[misc]
    """Passes over arrays of joblib's, whose bytes follow the object that describes them.

    Attributes:
        has_arrays: whether there are any.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._file = file
        self.has_arrays = False

    def find_class(self, module: str, name: str) -> type[Inert]:
        self.has_arrays |= module == "joblib.numpy_pickle"
        return type(name.rpartition(".")[2], (Inert,), {"__module__": module, "__qualname__": name})

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
