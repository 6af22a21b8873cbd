"""The process's event loop, on a thread of its own, and the threads on which it runs functions that block."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import os
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from headrace.core.registry import Registry

_LOGGER = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_CLOSING_SECS = 5.0
"""How long to wait for cancelled requests that do not end, and clients that do not close."""
_MOST_GIVEN_UP = 256
"""On how many threads calls may still run that were given up."""
_LOOK_SECS = 0.25
"""How often a caller that waits for the loop looks whether it still runs."""
_LOAD_SECS, _HIGH_LOAD = 0.1, 0.85
"""Over how long the load of the loop's thread is measured, and how much of the time it then computes."""


class Ended(NamedTuple):
    """How a call ended. Not an exception: a task that raises SystemExit, for example, ends its loop."""

    result: Any = None
    error: BaseException | None = None


class EventLoop:
    """An event loop that runs on a daemon thread: a request that hangs keeps no process alive."""

    def __init__(self, name: str = "headrace-requests") -> None:
        self.loop = asyncio.new_event_loop()
        self.threads = Threads(self.loop)
        self._closings: list[Callable[[], Coroutine[Any, Any, Any]]] = []
        self._is_over = False
        self._error: BaseException | None = None
        """What has ended it."""
        self._is_busy = False
        self._measured = -math.inf, 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls a function on the loop's thread, soon; a caller that waits for that has to ``check``."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(function, *args)

    def is_busy(self) -> bool:
        """Whether its thread has lately computed nearly all of the time; for that thread only."""
        (then, before), now = self._measured, self.loop.time()
        if now - then >= _LOAD_SECS:
            computed = time.thread_time()
            self._is_busy = computed - before >= _HIGH_LOAD * (now - then)
            self._measured = now, computed
        return self._is_busy

    def check(self) -> None:
        """Raises RuntimeError if the loop has ended: a caller that waits would wait for ever."""
        if not self._thread.is_alive():
            raise RuntimeError("The event loop of Headrace's requests has ended.") from self._error

    def wait_for(
        self, coroutine: Coroutine[Any, Any, ResultT], limit_secs: float = math.inf, name: str = ""
    ) -> ResultT:
        """Runs a coroutine, named in errors, to its end and returns its result; not for the loop's own thread.

        Raises:
            TimeoutError: it takes longer than the limit, and is cancelled.
            RuntimeError: the loop has ended.
        """
        self.check()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        ends = time.monotonic() + limit_secs
        while not wait([future], min(_LOOK_SECS, ends - time.monotonic())).done:
            self.check()
            if time.monotonic() >= ends:
                future.cancel()
                error = TimeoutError(f"{name} took longer than {limit_secs:g} s.")
                vars(error)["retryable"] = False  # the next try would cost the same time
                raise error
        return future.result()

    def close_at_end(self, client: Any) -> None:
        """Closes a client with the loop, which it belongs to, if it has an asynchronous method for that."""
        methods = (getattr(client, name, None) for name in ("aclose", "close"))
        self._closings += [method for method in methods if inspect.iscoroutinefunction(method)][:1]

    def close(self) -> None:
        """Cancels what is running, closes the clients and ends the thread."""
        self._is_over = True
        self.call(self.loop.stop)
        self._thread.join(_CLOSING_SECS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._turn_until(lambda: self._is_over)
            ending = self.loop.create_task(self._end_tasks())
            ending.add_done_callback(lambda _: self.loop.stop())
            self._turn_until(ending.done)
        except Exception as error:
            self._error = error
            _LOGGER.error("The event loop of Headrace's requests has failed.", exc_info=True)
        finally:
            self.threads.close()
            self.loop.close()

    def _turn_until(self, is_over: Callable[[], bool]) -> None:
        """Runs the loop: a task that raises SystemExit, or stops the loop, does not end it."""
        while not is_over():
            with suppress(SystemExit, KeyboardInterrupt):  # whoever waits for the task gets it
                self.loop.run_forever()

    async def _end_tasks(self) -> None:
        """Cancels all tasks and closes the clients; waits for a while only."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await _for_a_while(*tasks)
        await _for_a_while(*(close() for close in self._closings))
        await _for_a_while(self.loop.shutdown_asyncgens())


async def ended_in_time(attempt: Callable[[], Coroutine[Any, Any, Ended]], limit_secs: float | None) -> Ended | None:
    """How an attempt ends; None: not in time, and it is cancelled."""
    task = asyncio.ensure_future(attempt())
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_secs)
    finally:
        task.cancel()  # no effect once it has ended
    return task.result() if done else None


class Alarm:
    """Calls a function on a loop's thread, at about a time; not thread-safe."""

    _TOGETHER_SECS = 0.004
    """What is due within this time is done together: waking up costs more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        self._loop = loop
        self._function = function
        self._timer: asyncio.TimerHandle | None = None

    def set(self, secs: float) -> None:
        """Schedules the function ``secs`` from now; an alarm that is due earlier, or a little later, stays as it is."""
        now, together = self._loop.time(), self._TOGETHER_SECS
        when = now + max(secs, together)
        if self._timer is None or not now < self._timer.when() <= when + together:
            self.stop()
            self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None  # it may ring a moment before its time, and would seem to be set
        self._function()

    def stop(self) -> None:
        """The function is not called any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gathering:
    """Calls functions on a loop's thread, several at once: each time that they wake another thread costs both."""

    _TOGETHER_SECS = 0.01

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gathered: list[Callable[[], object]] = []

    def add(self, function: Callable[[], object], *, has_time: bool) -> None:
        """Calls a function soon; together with the others before it, and at once unless it ``has_time``."""
        self._gathered.append(function)
        if self._loop.is_closed():
            self._hand_over()
        elif len(self._gathered) == 1 or not has_time:
            self._loop.call_later(self._TOGETHER_SECS if has_time else 0.0, self._hand_over)

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        for function in gathered:
            function()


@types.coroutine
def in_context(context: contextvars.Context, coroutine: Coroutine[Any, Any, ResultT]) -> Generator[Any, Any, ResultT]:
    """What a coroutine returns that runs in a context of its own, though in the current task."""
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    try:
        while True:
            try:
                waits_for = context.run(resume, value)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            try:
                resume, value = coroutine.send, (yield waits_for)
            except BaseException as error:
                resume, value = coroutine.throw, error
    finally:
        del value  # an error would refer to itself


async def awaited(awaitable: Awaitable[ResultT]) -> ResultT:
    """What an awaitable returns, as a coroutine."""
    return await awaitable


async def _for_a_while(*ending: Awaitable[Any]) -> None:
    """Waits for what is to end, whatever it raises."""
    await asyncio.wait({asyncio.gather(*ending, return_exceptions=True)}, timeout=_CLOSING_SECS / 4)


_on_threads: set[asyncio.Future[Ended]] = set()
"""This process's calls that run on a thread or wait for one. A cancelled call is not awaited."""


class Threads:
    """Daemon threads for the loop's thread, as many as there are calls; those of ``concurrent.futures`` delay exit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: SimpleQueue[tuple[asyncio.Future[Ended], Callable[[], Any]] | None] = SimpleQueue()
        self._count = 0
        self._idle = 0
        """How many threads have nothing to do; negative: so many calls wait for one."""

    async def run(self, function: Callable[[], Any]) -> Ended:
        """Runs a function that blocks in the caller's context, and goes on even if that is cancelled.

        If no further thread can be started, it runs on the next one that is free.
        """
        if self._idle <= 0:
            self._add_thread()
        self._idle -= 1
        ended: asyncio.Future[Ended] = self._loop.create_future()
        _on_threads.add(ended)
        self._calls.put((ended, partial(contextvars.copy_context().run, function)))
        return await ended

    @staticmethod
    async def has_room(patience_secs: float) -> bool:
        """Whether there may be another call: waits so long while too many run that were given up."""
        ends = time.monotonic() + patience_secs
        while sum(call.cancelled() for call in list(_on_threads)) >= _MOST_GIVEN_UP:
            if time.monotonic() > ends:
                return False
            await asyncio.sleep(_LOOK_SECS)
        return True

    def close(self) -> None:
        """Ends the threads, each after its call."""
        for _ in range(self._count):
            self._calls.put(None)

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"headrace-request-{self._count + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._count:
                raise
        else:
            self._count += 1
            self._idle += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            try:
                ended = Ended() if future.cancelled() else Ended(function())
            except BaseException as error:
                ended = Ended(error=error)
            _on_threads.discard(future)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._settle, future, ended)
            del call, future, function, ended  # or an idle thread would keep its last request

    def _settle(self, future: asyncio.Future[Ended], ended: Ended) -> None:
        self._idle += 1
        if not future.cancelled():
            future.set_result(ended)


_loops: Registry[tuple[str, int], EventLoop] = Registry()
"""By purpose and process: a forked child inherits no threads, and makes loops of its own."""


def open_loop() -> EventLoop:
    """This process's loop; call ``close_loop`` once for each call."""
    return _loops.open(("requests", os.getpid()), EventLoop)


def close_loop() -> None:
    """Ends one use of this process's loop; the last one closes it."""
    loop = _loops.close(("requests", os.getpid()))
    if loop is not None:
        loop.close()


def result_of(awaitable: Awaitable[Any]) -> Any:
    """Awaits something for callers without a loop, such as Beam's transform: an asynchronous client needs one for good.

    Not to be called from that loop.
    """
    return _loops.open(("callers", os.getpid()), lambda: EventLoop("headrace-callers")).wait_for(awaited(awaitable))


def _forget() -> None:
    global _loops  # noqa: PLW0603 - each process has its own
    _loops = Registry()
    _on_threads.clear()  # none of the parent's threads ends here


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
