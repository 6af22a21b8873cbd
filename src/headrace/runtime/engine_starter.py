"""Starts hosts that load an engine, and judges those that do not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.errors import HostStartError
from headrace.core.events import Event, HostLost
from headrace.core.remote import pause_before_retry
from headrace.failures.load_policy import LoadPolicy, load_error
from headrace.hosts.provider import HostFailure, HostProvider
from headrace.hosts.stream import HostStream
from headrace.ipc.codec import decode
from headrace.ipc.exceptions import with_traceback_of
from headrace.ipc.progress import Activity
from headrace.runtime.messages import EngineAnswer, EngineLost
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)
_SERVING = (Activity.DECODING, Activity.INFERENCE)
"""What a shared host does whose engine is loaded: if it dies then, a request of another process was at fault."""
_MOST_LOST = 50
"""How often in a row another process may be at fault, before this one gives up."""


class EngineStarter:
    """Starts hosts, one at a time; used by one thread at a time.

    Args:
        spec: of the session.
        name: of the model.
        provider: starts the hosts.
        report: receives events of loads, and of hosts that were lost meanwhile.
    """

    def __init__(
        self, spec: SessionSpec, name: Any, provider: HostProvider, report: Callable[[Iterable[Event]], None]
    ) -> None:
        self._name = spec.plan.name
        self._label = spec.plan.label(name)
        self._timeout_secs = spec.timeout_secs
        self._is_shared = name in spec.shared
        self._loads = LoadPolicy(spec.clock.time_ns)
        self._provider = provider
        self._report = report

    def start(self, keep: Callable[[HostStream], None]) -> None:
        """Starts or joins a host and waits until it has loaded the engine; starts another if it dies of that, once.

        Args:
            keep: is given each host as soon as it runs; may raise, which ends the host.

        Raises:
            HostStartError: no host can be started.
            Exception: the engine cannot be loaded.
        """
        standing = self._loads.current_error()
        if standing is not None:
            raise standing
        lost = 0
        while True:
            began = time.monotonic()
            answer = self._answer(keep)
            seconds = time.monotonic() - began
            if isinstance(answer, EngineAnswer):
                break
            if self._is_shared and answer.snapshot.activity in _SERVING and lost < _MOST_LOST:
                lost += 1
                time.sleep(pause_before_retry(lost, first=0.05, longest=1.0))
                continue
            error = load_error(answer, self._name, self._timeout_secs)
            self._report([HostLost(self._label, answer.timed_out, answer.exit_text)])
            _LOGGER.warning("%s: the host %s while it was loading the model.", self._name, answer.exit_text)
            if not self._loads.failed(error, seconds, timed_out=answer.timed_out):
                raise error
        self._report(answer.events)
        if answer.caught is not None:
            self._loads.raised(answer.caught.error, seconds)
            raise with_traceback_of(*answer.caught)
        self._loads.loaded()

    def _answer(self, keep: Callable[[HostStream], None]) -> EngineAnswer | HostFailure:
        """What becomes of loading the engine in a new host; if it is not loaded, the host has ended."""
        try:
            stream = HostStream(self._provider, self._timeout_secs)
        except OSError as error:
            raise HostStartError(self._name, f"{error}.") from error
        try:
            keep(stream)
            received = stream.receive()
            if isinstance(received, HostFailure):
                return received
            answer: EngineAnswer = decode(received.content, own=True).head
            if answer.lost is not None:
                return kill(stream, answer.lost)
        except BaseException:
            stream.end()
            raise
        if answer.caught is not None:
            stream.end()
        return answer


def kill(stream: HostStream, lost: EngineLost) -> HostFailure:
    """Ends a host that says that it is of no more use."""
    return stream.kill(lost.exit_text, timed_out=lost.timed_out, device_lost=not lost.timed_out)
