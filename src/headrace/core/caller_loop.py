"""An event loop for callers that have none, such as Beam's transform: an asynchronous client needs one for good."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a forked child inherits no threads."""


def result_of(awaitable: Awaitable[Any]) -> Any:
    """Awaits something on the process's loop for callers; not to be called from that loop."""
    return asyncio.run_coroutine_threadsafe(awaited(awaitable), _loop()).result()


def run_on(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool] = lambda: False) -> None:
    """Runs this thread's loop until it is over: a task that raises SystemExit, or stops the loop, does not end it."""
    while not is_over():
        with suppress(SystemExit, KeyboardInterrupt):  # whoever waits for the task gets it
            loop.run_forever()


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """What an awaitable returns, as a coroutine."""
    return await awaitable


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=run_on, args=(loop,), name="headrace-callers", daemon=True).start()
        return _loops[os.getpid()]


def _forget() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
