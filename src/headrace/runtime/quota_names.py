"""Which handlers' requests count against the same quota, and so share a limit with all processes of the machine."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.remote import HOW_TO_SEND, RemoteModelHandler
from headrace.runtime.plan import Plan


def quota_names(plan: Plan) -> tuple[tuple[Any, str], ...]:
    """Models with the names of their quotas, but for those that send no requests, or whose quota cannot be named.

    Raises:
        ConfigurationError: a handler's ``quota_name`` is no text.
    """
    handlers = {name: handler for name, handler in plan.models.items() if name in plan.concurrent}
    remote = {name: one for name, one in handlers.items() if isinstance(one, RemoteModelHandler)}
    found = {name: _named(one) for name, one in remote.items() if one.max_concurrent is None}
    return tuple((name, quota) for name, quota in found.items() if quota is not None)


def _named(handler: RemoteModelHandler[Any, Any, Any]) -> str | None:
    given = handler.quota_name()
    if not isinstance(given, str | None):
        raise ConfigurationError(f"{type(handler).__qualname__}.quota_name must return a str or None, not {given!r}.")
    if given is not None:
        return f"given {given}"
    attributes = {name: value for name, value in vars(handler).items() if name not in HOW_TO_SEND}
    try:
        digest = hashlib.sha256(_pickled(attributes)).hexdigest()
    except Exception:
        return None  # nobody can tell whether another process asks the same endpoint
    return f"{type(handler).__module__}.{type(handler).__qualname__} {digest}"


def _pickled(attributes: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(attributes)
    except Exception:
        import cloudpickle  # noqa: PLC0415 - takes time, and few handlers have functions of __main__

        data: bytes = cloudpickle.dumps(attributes)
        return data
