"""The process that holds a machine's models for all of a user's programs; ``python -m headrace.machine.manager``.

One thread accepts clients, one serves each client, one loads each model. A connection is a lease: when it closes, for
whatever reason, the client no longer keeps its model in memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, HostStartError, ModelMemoryError
from headrace.hosts.orphans import namespace
from headrace.hosts.provider import HostFailure
from headrace.hosts.system import lower_oom_score
from headrace.hosts.thread_budget import ComputingPage
from headrace.ipc.channel import Channel
from headrace.machine.discovery import ManagerEndpoint
from headrace.machine.lease import EndHost, JoinHost, LoadRequest, ModelGrant, Refused, StatusRequest
from headrace.machine.shared_model import SharedModel
from headrace.models.admission import Admit, Evict, Held, Refuse, admit
from headrace.models.memory import memory_available, memory_limit

_FIRST_CLIENT_SECS = 10.0
"""A manager that no client has connected to within this time exits."""
_FAILURES = 1000
"""How many of the latest failed loads are remembered."""
_POLL_SECS = 0.1
"""How often a wait checks what no condition variable signals, such as a client that hung up."""


class _Entry:
    """A model and how it is used."""

    def __init__(self, model: SharedModel) -> None:
        self.model = model
        self.leases = 0
        self.linger_secs = 0.0
        self.last_used_ns = 0


class Manager:
    """Serves clients until there are none, and no model lingers.

    Args:
        endpoint: where clients connect.
        clock: measures how long models linger.
    """

    def __init__(self, endpoint: ManagerEndpoint, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._clock: Clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._clients: dict[Channel, _Entry | None] = {}
        self._processes: dict[Channel, str] = {}
        """The client process of each connection that has requested a model."""
        self._loading: dict[_Entry, int | None] = {}
        """Expected bytes of each load in progress; None: unknown."""
        self._peaks: dict[str, int] = {}
        """Peak bytes of earlier loads, by model key."""
        self._failures: dict[str, tuple[int, ModelGrant]] = {}
        """When loading each model last raised, and the grant with its error."""
        self._dropping: dict[int, int] = {}
        """Bytes of each model that is being dropped, by the entry's id."""
        self._started_ns = self._clock.time_ns()
        self._had_clients = False
        self._page = ComputingPage()

    def run(self) -> None:
        """Serves until the last client has left and the last model has lingered long enough."""
        threading.Thread(target=self._accept_clients, name="welcomes clients", daemon=True).start()
        # Lingering: a model without leases stays until ``linger_secs`` after its last use. This thread sleeps until the
        # next one is due, or until a change may have made one due earlier. It drops models outside the lock, since that
        # waits for their hosts to end.
        while True:
            with self._changed:
                dropped = self._expired()
                if not dropped and self._is_idle():
                    break
                if not dropped:
                    self._changed.wait(self._next_expiry_secs())
            for entry in dropped:
                self._drop(entry)
        self._endpoint.remove()

    # clients

    def _accept_clients(self) -> None:
        while self._endpoint.fileno() >= 0:
            try:
                channel = Channel(self._endpoint.accept())
            except OSError:  # the endpoint was removed; or too many files are open, which may pass
                time.sleep(_POLL_SECS)
                continue
            with self._changed:
                self._clients[channel] = None
                self._had_clients = True
            threading.Thread(target=self._serve, args=[channel], name="serves a client", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        try:
            channel.send("welcome")
            while True:
                request, files = channel.receive()
                self._answer(channel, request, files)
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        finally:
            with self._changed:
                entry = self._clients.pop(channel)
                self._processes.pop(channel, None)
                if entry is not None:
                    entry.model.remove_sink(channel)
                abandoned = self._release(entry)
                self._count_computing()
                self._changed.notify_all()
            channel.close()
            if abandoned is not None:
                self._drop(abandoned)

    def _answer(self, channel: Channel, request: Any, files: list[int]) -> None:
        if isinstance(request, LoadRequest):
            answer, attached = self._take(channel, request, files[0])
            channel.send(answer, attached)
        elif isinstance(request, StatusRequest):
            channel.send(self.status())
        else:
            self._answer_about_host(channel, request)

    def _answer_about_host(self, channel: Channel, request: JoinHost | EndHost) -> None:
        entry = self._clients[channel]
        if entry is None:
            channel.send(Refused(HostStartError("a model", "it has not been ordered.")))
        elif isinstance(request, EndHost):
            channel.send(entry.model.reap(request.process, late=request.late))
        else:
            try:
                joined, files = entry.model.join(request.number)
            except HeadraceError as error:
                channel.send(Refused(error))
                return
            try:
                channel.send(joined, files)
            finally:
                for file in files:
                    os.close(file)

    # models

    def _take(
        self, channel: Channel, load_request: LoadRequest, sink: int
    ) -> tuple[ModelGrant | HostFailure | Refused, list[int]]:
        with self._changed:
            failure = self._fresh_failure(load_request)
            if failure is not None:
                os.close(sink)
                return failure, []
            entry = self._entries.get(load_request.key)
            is_first = entry is None
            if entry is None:
                entry = self._entries[load_request.key] = _Entry(SharedModel(load_request))
                threading.Thread(
                    target=self._load, args=[entry], name=f"loads {load_request.name}", daemon=True
                ).start()
            entry.leases += 1
            entry.linger_secs = max(entry.linger_secs, load_request.linger_secs)
            entry.model.add_sink(channel, sink)
            self._clients[channel] = entry
            self._processes[channel] = load_request.process
            while entry.model.outcome is None:
                # No condition signals that this client hung up; without the poll, a load that no client wants any more
                # would run to its end instead of being dropped.
                self._changed.wait(_POLL_SECS)
                if _has_hung_up(channel):
                    raise EOFError
            outcome = entry.model.outcome
            abandoned = None
            if not entry.model.is_ready:
                self._clients[channel] = None  # closing the model closes the sink, after the last output
                abandoned = self._release(entry)
            self._count_computing()
        if abandoned is not None:
            self._drop(abandoned)
        if isinstance(outcome, ModelGrant):
            outcome = outcome._replace(is_first=is_first)
        file = entry.model.file
        return outcome, [] if file is None or not entry.model.is_ready else [file, self._page.file]

    def _fresh_failure(self, load_request: LoadRequest) -> ModelGrant | None:
        """The answer that another client got to a failed load, if it is recent enough for this one."""
        when, load_response = self._failures.get(load_request.key, (0, None))
        is_fresh = (
            self._clock.time_ns() - when < load_request.fresh_secs * 1e9 and load_request.key not in self._entries
        )
        return load_response if is_fresh else None

    def _count_computing(self) -> None:
        computing = {
            self._processes[channel]
            for channel, entry in self._clients.items()
            if entry is not None and entry.model.file is not None
        }
        self._page.write(len(computing))

    def _load(self, entry: _Entry) -> None:
        model, key = entry.model, entry.model.load_request.key
        outcome: ModelGrant | HostFailure | Refused
        try:
            need = max(self._peaks.get(key, 0), model.load_request.at_least or 0) or None
            refusal = self._wait_for_memory(entry, need)
            if refusal:
                raise ModelMemoryError(model.load_request.name, refusal)
            outcome = model.load(lambda more: self._wait_for_memory(entry, more))
        except HeadraceError as error:
            outcome = Refused(error)
        except Exception as error:  # any error must reach the clients, or they would wait forever
            lines = traceback.format_exc().splitlines()
            outcome = Refused(HostStartError(model.load_request.name, f"{error!r}.", lines))
        with self._changed:
            self._loading.pop(entry, None)
            if model.peak:
                self._peaks[key] = model.peak
            model.outcome = outcome
            self._failures.pop(key, None)
            if isinstance(outcome, ModelGrant) and not outcome.is_loaded:
                self._failures[key] = self._clock.time_ns(), outcome._replace(is_first=False)
                for oldest in list(self._failures)[:-_FAILURES]:
                    del self._failures[oldest]
            has_failed = not model.is_ready and self._forget(entry)  # the next client triggers a new load
            is_forgotten = self._entries.get(key) is not entry
            self._changed.notify_all()
        if has_failed:
            self._drop(entry)
        elif is_forgotten:
            model.close()  # it was dropped during the load: close what the load has added since

    def _wait_for_memory(self, loading: _Entry, need: int | None) -> str | None:
        """Waits until the model may be loaded and returns None; or returns why it cannot be.

        Args:
            loading: the model's entry.
            need: bytes that the load takes; None: unknown.
        """
        # The policy decides anew after each change: a load that ended, a lease that ended, a model that is gone. Models
        # to evict leave the table under the lock, so that no client gets them, and are closed outside of it.
        while True:
            with self._changed:
                self._loading.pop(loading, None)
                leaving = sum(self._dropping.values())
                needs = list(self._loading.values())
                verdict = admit(need, self._held(), needs, memory_available(), memory_limit(), leaving=leaving)
                if isinstance(verdict, Admit):
                    self._loading[loading] = need
                    return None
                if isinstance(verdict, Refuse):
                    if not self._a_client_is_leaving():
                        return verdict.reason
                    self._changed.wait(_POLL_SECS)
                    continue
                evicted = [self._entries[idle] for idle in verdict.keys] if isinstance(verdict, Evict) else []
                for entry in evicted:
                    self._forget(entry)
                if not evicted:
                    self._changed.wait()
            for entry in evicted:
                self._drop(entry)

    def _a_client_is_leaving(self) -> bool:
        """Whether a client hung up whose lease has not ended yet: its model may be evicted in a moment."""
        return any(entry is not None and _has_hung_up(channel) for channel, entry in self._clients.items())

    def _held(self) -> list[Held]:
        return [
            Held(key, entry.model.nbytes, entry.leases, entry.last_used_ns / 1e9)
            for key, entry in self._entries.items()
            if entry.model.is_ready
        ]

    def _release(self, entry: _Entry | None) -> _Entry | None:
        """Ends a lease; returns the entry if the caller must drop it at once."""
        if entry is None:
            return None
        entry.leases -= 1
        entry.last_used_ns = self._clock.time_ns()
        if entry.leases or (entry.model.is_ready and entry.linger_secs > 0):
            return None
        return entry if self._forget(entry) else None

    def _forget(self, entry: _Entry) -> bool:
        """Hides a model from new clients; the caller must then drop it. Returns False if it was hidden already."""
        key = entry.model.load_request.key
        if self._entries.get(key) is not entry:
            return False
        del self._entries[key]
        self._dropping[id(entry)] = entry.model.nbytes
        return True

    def _drop(self, entry: _Entry) -> None:
        try:
            entry.model.close()
        finally:
            with self._changed:
                del self._dropping[id(entry)]
                self._changed.notify_all()

    # the end

    def _expired(self) -> list[_Entry]:
        now = self._clock.time_ns()
        overdue = [entry for entry in self._entries.values() if not entry.leases and self._expires_ns(entry) <= now]
        return [entry for entry in overdue if self._forget(entry)]

    @staticmethod
    def _expires_ns(entry: _Entry) -> float:
        return entry.last_used_ns + entry.linger_secs * 1e9

    def _is_idle(self) -> bool:
        if self._entries or self._clients or self._dropping:
            return False
        return self._had_clients or self._clock.time_ns() - self._started_ns > _FIRST_CLIENT_SECS * 1e9

    def _next_expiry_secs(self) -> float | None:
        """Seconds until the next lingering model is due; None: none lingers."""
        if not self._had_clients:
            return _FIRST_CLIENT_SECS
        due = [self._expires_ns(entry) for entry in self._entries.values() if not entry.leases]
        return max(0.0, (min(due) - self._clock.time_ns()) / 1e9) if due else None

    def status(self) -> dict[str, Any]:
        """The manager's state in plain values, which other versions of Headrace can unpickle."""
        with self._changed:
            models = [_described(entry) for entry in self._entries.values()]
            return {
                "process": os.getpid(),
                "namespace": namespace(),
                "clients": len(self._clients),
                "models": models,
            }


def _described(entry: _Entry) -> dict[str, Any]:
    model = entry.model
    grant = model.outcome if isinstance(model.outcome, ModelGrant) else None
    return {
        "name": model.load_request.name,
        "key": model.load_request.key,
        "state": "ready" if model.is_ready else "loading" if model.outcome is None else "failed",
        "mapped": grant is not None and grant.layout is not None,
        "reason": grant.reason if grant else "",
        "bytes": model.nbytes,
        "clients": entry.leases,
        "hosts": model.processes,
        "linger_secs": entry.linger_secs,
    }


def _has_hung_up(channel: Channel) -> bool:
    poll = select.poll()
    poll.register(channel.fileno(), getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def main() -> None:
    """Arguments: the runtime directory, the endpoint's name, the descriptors of its lock and its socket, an offer.

    The offer is by how much a launching host had raised its own out-of-memory score; ``lower_oom_score`` takes it off.
    """
    directory, name, lock, listening, offer = sys.argv[1:]
    lower_oom_score(int(offer))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Manager(ManagerEndpoint.inherited(directory, name, int(lock), int(listening))).run()


if __name__ == "__main__":
    main()
