"""Pickles a handler for another process, or raises an error that names the attribute that does not pickle."""

from __future__ import annotations

import contextlib
import io
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.transferable import LOCKS

PROTOCOL = 5


def pickle_or_explain(value: Any, name: str, part: Any = None) -> bytes:
    """Pickles a value for another process; functions and classes that cannot be imported there go by value.

    Locks arrive as new ones.

    Args:
        value: a handler, or an object that contains one.
        name: what error messages call it: the handler's class.
        part: the handler inside ``value``, whose attributes are searched; None: ``value`` is the handler.

    Raises:
        ConfigurationError: it does not pickle; the message names the attribute at fault.
    """
    try:
        return _dumped(value)
    except Exception as error:
        culprit, where = _culprit(value if part is None else part, name)
        raise ConfigurationError(
            f"{name} cannot go to the process in which its model is to live: {where}, of type "
            f"{as_type_name(type(culprit))}, does not pickle ({as_type_name(error)}: {str(error)[:10_000]}). "
            "Make it in load_model, which runs in that process; or leave it out of the constructor, or out "
            "of what __getstate__ returns."
        ) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(dict(LOCKS), *cloudpickle.Pickler.dispatch_table.maps)


def _dumped(value: Any) -> bytes:
    content = io.BytesIO()
    _Pickler(content, PROTOCOL).dump(value)
    return content.getvalue()


def _culprit(value: Any, name: str) -> tuple[Any, str]:
    """The first attribute that does not pickle, and what to call it; the value itself if none is found."""
    with contextlib.suppress(Exception):  # user objects may raise at any attribute access
        state = value.__reduce_ex__(PROTOCOL)[2]
        for attribute, part in state.items():
            if not _pickles(part):
                return part, f"{name}.{attribute}"
    return value, name


def _pickles(value: Any) -> bool:
    try:
        _dumped(value)
    except Exception:
        return False
    return True
