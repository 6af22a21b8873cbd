"""The process that holds a machine's models for all of a user's programs; ``python -m headrace.machine.manager``.

One thread accepts clients, one serves each client, one loads each model. A connection is a lease: when it closes, for
whatever reason, the client no longer keeps its model in memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
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


@dataclass
class _Lessee:
    """What one connection uses."""

    model: SharedModel | None = None
    process: str = ""
    """The client's process, once it has requested a model."""


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
        self._models: dict[str, SharedModel] = {}
        self._clients: dict[Channel, _Lessee] = {}
        self._loading: dict[SharedModel, int | None] = {}
        """Expected bytes of each load in progress; None: unknown."""
        self._peaks: dict[str, int] = {}
        """Peak bytes of earlier loads, by model key."""
        self._failures: dict[str, tuple[int, ModelGrant]] = {}
        """When loading each model last raised, and the grant with its error."""
        self._dropping: dict[SharedModel, int] = {}
        """Bytes of each model that is being dropped."""
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
            for model in dropped:
                self._drop(model)
        self._endpoint.remove()

    # clients

    def _accept_clients(self) -> None:
        while self._endpoint.fileno() >= 0:
            try:
                channel = Channel(self._endpoint.accept())
            except OSError:  # the endpoint was removed; or too many files are open, which may pass, but not at once
                time.sleep(_POLL_SECS)
                continue
            with self._changed:
                self._clients[channel] = _Lessee()
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
                model = self._clients.pop(channel).model
                if model is not None:
                    model.remove_sink(channel)
                abandoned = self._release(model)
                self._count_computing()
                self._changed.notify_all()
            channel.close()
            if abandoned is not None:
                self._drop(abandoned)

    def _answer(self, channel: Channel, request: Any, files: list[int]) -> None:
        if isinstance(request, LoadRequest):
            channel.send(*self._take(channel, request, files[0]))
        elif isinstance(request, StatusRequest):
            channel.send(self.status())
        else:
            self._answer_about_host(channel, request)

    def _answer_about_host(self, channel: Channel, request: JoinHost | EndHost) -> None:
        model = self._clients[channel].model
        if model is None:
            channel.send(Refused(HostStartError("a model", "its client has requested none.")))
        elif isinstance(request, EndHost):
            channel.send(model.reap(request.process, late=request.late))
        else:
            try:
                joined, files = model.join(request.number)
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
            is_first = load_request.key not in self._models
            model = self._lend(channel, load_request, sink)
            while model.outcome is None:
                # No condition signals that this client hung up; without the poll, a load that no client wants any more
                # would run to its end instead of being dropped.
                self._changed.wait(_POLL_SECS)
                if channel.has_hung_up():
                    raise EOFError
            outcome = model.outcome
            abandoned = None
            if not model.is_ready:
                self._clients[channel].model = None  # closing the model closes the sink, after the last output
                abandoned = self._release(model)
            self._count_computing()
        if abandoned is not None:
            self._drop(abandoned)
        if isinstance(outcome, ModelGrant):
            outcome = outcome._replace(is_first=is_first)
        file = model.file
        return outcome, [] if file is None or not model.is_ready else [file, self._page.file]

    def _lend(self, channel: Channel, load_request: LoadRequest, sink: int) -> SharedModel:
        """Gives a client a lease of the model, which starts to load if it is not there."""
        model = self._models.get(load_request.key)
        if model is None:
            model = self._models[load_request.key] = SharedModel(load_request)
            name = f"loads {load_request.name}"
            threading.Thread(target=self._load, args=[model], name=name, daemon=True).start()
        model.leases += 1
        model.linger_secs = max(model.linger_secs, load_request.linger_secs)
        model.add_sink(channel, sink)
        self._clients[channel] = _Lessee(model, load_request.process)
        return model

    def _fresh_failure(self, load_request: LoadRequest) -> ModelGrant | None:
        """The answer that another client got to a failed load, if it is recent enough for this one."""
        when, load_response = self._failures.get(load_request.key, (0, None))
        is_fresh = self._clock.time_ns() - when < load_request.fresh_secs * 1e9 and load_request.key not in self._models
        return load_response if is_fresh else None

    def _count_computing(self) -> None:
        clients = [one for one in self._clients.values() if one.model is not None and one.model.file is not None]
        self._page.write(len({client.process for client in clients}))

    def _load(self, model: SharedModel) -> None:
        key = model.load_request.key
        outcome: ModelGrant | HostFailure | Refused
        try:
            need = max(self._peaks.get(key, 0), model.load_request.at_least or 0) or None
            refusal = self._wait_for_memory(model, need)
            if refusal:
                raise ModelMemoryError(model.load_request.name, refusal)
            outcome = model.load(lambda more: self._wait_for_memory(model, more))
        except HeadraceError as error:
            outcome = Refused(error)
        except Exception as error:  # any error must reach the clients, or they would wait forever
            lines = traceback.format_exc().splitlines()
            outcome = Refused(HostStartError(model.load_request.name, f"{error!r}.", lines))
        with self._changed:
            self._loading.pop(model, None)
            if model.peak:
                self._peaks[key] = model.peak
            model.outcome = outcome
            self._failures.pop(key, None)
            if isinstance(outcome, ModelGrant) and not outcome.is_loaded:
                self._failures[key] = self._clock.time_ns(), outcome._replace(is_first=False)
                for oldest in list(self._failures)[:-_FAILURES]:
                    del self._failures[oldest]
            has_failed = not model.is_ready and self._forget(model)  # the next client triggers a new load
            is_forgotten = self._models.get(key) is not model
            self._changed.notify_all()
        if has_failed:
            self._drop(model)
        elif is_forgotten:
            model.close()  # it was dropped during the load: close what the load has added since

    def _wait_for_memory(self, loading: SharedModel, need: int | None) -> str | None:
        """Waits until a model that takes ``need`` bytes (None: unknown) may be loaded; returns why it cannot be."""
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
                evicted = [self._models[idle] for idle in verdict.keys] if isinstance(verdict, Evict) else []
                for model in evicted:
                    self._forget(model)
                if not evicted:
                    self._changed.wait()
            for model in evicted:
                self._drop(model)

    def _a_client_is_leaving(self) -> bool:
        """Whether a client hung up whose lease has not ended yet: its model may be evicted in a moment."""
        return any(client.model is not None and channel.has_hung_up() for channel, client in self._clients.items())

    def _held(self) -> list[Held]:
        return [
            Held(key, model.nbytes, model.leases, model.last_used_ns / 1e9)
            for key, model in self._models.items()
            if model.is_ready
        ]

    def _release(self, model: SharedModel | None) -> SharedModel | None:
        """Ends a lease; returns the model if the caller must drop it at once."""
        if model is None:
            return None
        model.leases -= 1
        model.last_used_ns = self._clock.time_ns()
        if model.leases or (model.is_ready and model.linger_secs > 0):
            return None
        return model if self._forget(model) else None

    def _forget(self, model: SharedModel) -> bool:
        """Hides a model from new clients; the caller must then drop it. Returns False if it was hidden already."""
        key = model.load_request.key
        if self._models.get(key) is not model:
            return False
        del self._models[key]
        self._dropping[model] = model.nbytes
        return True

    def _drop(self, model: SharedModel) -> None:
        try:
            model.close()
        finally:
            with self._changed:
                del self._dropping[model]
                self._changed.notify_all()

    # the end

    def _expired(self) -> list[SharedModel]:
        now = self._clock.time_ns()
        idle = [model for model in self._models.values() if not model.leases]
        return [model for model in idle if self._expires_ns(model) <= now and self._forget(model)]

    @staticmethod
    def _expires_ns(model: SharedModel) -> float:
        return model.last_used_ns + model.linger_secs * 1e9

    def _is_idle(self) -> bool:
        if self._models or self._clients or self._dropping:
            return False
        return self._had_clients or self._clock.time_ns() - self._started_ns > _FIRST_CLIENT_SECS * 1e9

    def _next_expiry_secs(self) -> float | None:
        """Seconds until the next lingering model is due; None: none lingers."""
        if not self._had_clients:
            return _FIRST_CLIENT_SECS
        due = [self._expires_ns(model) for model in self._models.values() if not model.leases]
        return max(0.0, (min(due) - self._clock.time_ns()) / 1e9) if due else None

    def status(self) -> dict[str, Any]:
        """The manager's state in plain values, which other versions of Headrace can unpickle."""
        with self._changed:
            models = [model.describe() for model in self._models.values()]
            clients = len(self._clients)
        return {"process": os.getpid(), "namespace": namespace(), "clients": clients, "models": models}


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
