"""The host of an engine that all worker processes of the machine share: loads it, and serves each process's stream."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from headrace.core.model_cache import Slot
from headrace.hosts.stream import Outgoing
from headrace.ipc.channel import Channel
from headrace.ipc.progress import Progress
from headrace.runtime.engine_host import LOADING, EngineAnswers, EngineClient, RunningEngine
from headrace.runtime.messages import DeviceLost, EngineAnswer, EngineLost, Raised, Work
from headrace.runtime.request_handler import BatchRequestHandler
from headrace.runtime.spec import SessionSpec

_LEAVING_SECS = 1.0
"""How long to wait for what serves a client to end, so that nothing refers to the engine."""
NOT_MAPPED = "it is an engine, which takes the requests of all processes itself"
"""Why the weights of a shared engine are not in shared memory."""


class SharedEngineRequestHandler(BatchRequestHandler):
    """Loads an engine when its owner asks for that, and gives it the requests of the owner's clients; a host each.

    Pickled to the host, where it is a ``SharedStreamHandler``.

    Args:
        spec: of the session.
        name: of the model.
    """

    def __init__(self, spec: SessionSpec, name: Any) -> None:
        super().__init__(replace(spec, cache=None))
        self._name = name
        self._held: Slot | None = None
        self._engine: RunningEngine | None = None
        self._clients: dict[threading.Thread, Channel] = {}

    def add_stream(self, channel: Channel, progress: Progress) -> bool:
        """Serves one more client; loads the engine if this host has replaced the one that did. False: it cannot."""
        answer = EngineAnswer() if self._engine is not None else self._start(progress)
        EngineAnswers(channel.send_content).send(LOADING, answer)
        if self._engine is None:
            channel.close()
            return False
        thread = threading.Thread(target=_serve, args=(self._engine, channel), name="serves a client", daemon=True)
        self._clients = {one: its for one, its in self._clients.items() if one.is_alive()} | {thread: channel}
        thread.start()
        return True

    def close(self) -> None:
        """Ends the engine."""
        for channel in self._clients.values():
            channel.shut_down()
        for thread in self._clients:
            thread.join(_LEAVING_SECS)
        self._clients.clear()
        if self._engine is not None and self._held is not None:
            self._engine.close()
            self._held.release()
            self._engine = self._held = None
        super().close()

    def _start(self, progress: Progress) -> EngineAnswer:
        """Loads the engine, unless this host has, and has it take requests; returns what became of that."""
        progress.begin(LOADING)
        head = self.answer(Work(self._name), [], progress).head
        if isinstance(head, DeviceLost):
            return EngineAnswer(lost=EngineLost(head.exit_text, timed_out=False))
        if isinstance(head, Raised):
            return EngineAnswer(head.caught)
        assert self._worker is not None
        self._held = self._worker.borrow(self._name)
        handler = self._worker.plan.models[self._name]
        self._engine = RunningEngine(handler, self._held.model.model, progress, self._spec.timeout_secs)
        return EngineAnswer(events=head.events)


def _serve(engine: RunningEngine, channel: Channel) -> None:
    """Serves a client until it leaves."""
    outgoing = Outgoing(channel)  # a client that reads nothing must not hold up the others
    EngineClient(engine, EngineAnswers(outgoing.send)).serve(channel)
    channel.shut_down()
    outgoing.end()
    channel.close()
