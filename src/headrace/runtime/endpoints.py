"""The endpoints of one session, with the event loop that serves them, and the quotas that their requests share."""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.event_loop import EventLoop, awaited, close_loop, open_loop
from headrace.core.remote import HOW_TO_SEND, RemoteModelHandler
from headrace.failures.endpoint_board import Board
from headrace.failures.replies import EndpointRecord
from headrace.hosts.system import why_no_hosts
from headrace.runtime.dispatcher import Dispatcher
from headrace.runtime.endpoint_calls import rules_of
from headrace.runtime.plan import Plan
from headrace.runtime.spec import SessionSpec

_LONGEST_CREATION_SECS = 300.0
"""How long making a client may take."""


class Endpoints:
    """One session's endpoints, shared by its threads. Thread-safe.

    The first use opens the process's event loop. A forked child begins anew: it inherits neither loop nor requests.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._loop: EventLoop | None = None
        self._begin()

    def of(self, name: Any) -> Dispatcher:
        """The endpoint of the named model."""
        event_loop = self._opened()
        with self._lock:
            if name not in self._endpoints:
                rules = rules_of(self._spec, name)
                quota = dict(self._spec.quota_names).get(name)
                record = _record_of(quota or (self._spec.transform, name))
                self._endpoints[name] = Dispatcher(event_loop, rules, _board_of(quota), record)
            return self._endpoints[name]

    def check(self) -> None:
        """Raises RuntimeError if the event loop has ended: requests have nowhere to run any more."""
        if self._loop is not None:
            self._loop.check()

    def loaded(self, handler: Any) -> Any:
        """What ``load_model`` returns; if that has to be awaited, its result. It is closed with the event loop.

        Raises:
            TimeoutError: a client takes too long.
        """
        event_loop = self._opened()
        if isinstance(handler, RemoteModelHandler):
            name = f"{type(handler).__qualname__}.create_client"
            model = event_loop.wait_for(_created(handler, event_loop), _LONGEST_CREATION_SECS, name)
        else:
            model = handler.load_model()
            model = event_loop.wait_for(awaited(model)) if inspect.isawaitable(model) else model
        event_loop.close_at_end(model)
        return model

    def close(self) -> None:
        """Ends the use of the event loop."""
        if self._process == os.getpid() and self._loop is not None:
            for endpoint in self._endpoints.values():
                self._loop.call(endpoint.close)
            self._endpoints.clear()
            self._loop = None
            close_loop()

    def _opened(self) -> EventLoop:
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if self._loop is None:
                self._loop = open_loop()
            return self._loop

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._loop = None
        self._endpoints: dict[Any, Dispatcher] = {}


@lru_cache(1000)
def _record_of(_: Hashable) -> EndpointRecord:
    """That of an endpoint which this process has used lately, by quota, or else by transform and model."""
    return EndpointRecord()


def _board_of(quota_name: str | None) -> Board | None:
    """Where the machine's processes keep what they find out about an endpoint; None: it is this process's affair."""
    if quota_name is None or why_no_hosts() is not None:
        return None
    from headrace.machine.shared_file import shared_board  # noqa: PLC0415 - the system has what this module needs

    return shared_board(quota_name)


async def _created(handler: RemoteModelHandler[Any, Any, Any], event_loop: EventLoop) -> Any:
    ended = await event_loop.threads.run(handler.load_model)
    if ended.error is not None:
        raise ended.error
    return await ended.result if inspect.isawaitable(ended.result) else ended.result


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
        import cloudpickle  # noqa: PLC0415 - takes time, and only endpoints need it; handlers may have lambdas

        digest = hashlib.sha256(cloudpickle.dumps(attributes)).hexdigest()
    except Exception:
        return None  # nobody can tell whether another process asks the same endpoint
    return f"{type(handler).__module__}.{type(handler).__qualname__} {digest}"
