"""The machine's shared models: who loads each, which clients have a lease of it, and when it goes."""

from __future__ import annotations

import contextlib
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, HostStartError, ModelMemoryError
from headrace.hosts.environment import count_computing
from headrace.hosts.host import Exported
from headrace.ipc.channel import Channel
from headrace.ipc.segment import Segment
from headrace.machine.messages import LoadHere, LoadRequest, ModelGrant
from headrace.machine.shared_model import Outcome, SharedModel
from headrace.models.admission import Admit, Evict, Held, Refuse, admit
from headrace.models.memory import memory_available, memory_limit

_POLL_SECS = 0.1
"""How often a wait checks what no condition variable signals, such as a client that hung up."""


@dataclass
class _Lessee:
    """What one connection uses."""

    model: SharedModel | None = None
    process: str = ""
    """The client's process, once it has requested a model."""
    offers: bool = False
    """Whether it can load the model itself."""


class ModelTable:
    """All shared models and their clients; thread-safe. A client is known by its channel."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._models: dict[str, SharedModel] = {}
        self._clients: dict[Channel, _Lessee] = {}
        self._loading: dict[SharedModel, int | None] = {}
        """Expected bytes of each load in progress; None: unknown."""
        self._peaks: dict[str, int] = {}
        """Peak bytes of earlier loads, by model key."""
        self._dropping: dict[SharedModel, int] = {}
        """Bytes of each model that is being dropped."""
        self._page = Segment.create(0, 8)
        """Says how many processes compute."""

    def run(self) -> None:
        """Drops models that have lingered long enough; returns when there is neither a model nor a client."""
        # A model without leases stays until ``linger_secs`` after its last use. This thread sleeps until the next one
        # is due, or until a change may have made one due earlier. It drops models outside the lock, since that waits
        # for their hosts to end.
        while True:
            with self._changed:
                dropped = self._expired()
                if not (self._models or self._clients or self._dropping):
                    return
                if not dropped:
                    self._changed.wait(self._next_expiry_secs())
            self._drop(*dropped)

    def join(self, client: Channel) -> None:
        """Adds a client, which uses no model yet."""
        with self._changed:
            self._clients[client] = _Lessee()

    def leave(self, client: Channel) -> None:
        """Ends a client's lease."""
        with self._changed:
            model = self._clients.pop(client).model
            if model is not None:
                model.remove_sink(client)
            abandoned = self._release(model)
            self._changed.notify_all()
        self._drop(*abandoned)

    def model_of(self, client: Channel) -> SharedModel:
        """The model that the client has requested."""
        model = self._clients[client].model
        assert model is not None
        return model

    def describe(self) -> dict[str, Any]:
        """The number of clients, and the state of each model in plain values."""
        with self._changed:
            return {"clients": len(self._clients), "models": [model.describe() for model in self._models.values()]}

    def take(self, client: Channel, load_request: LoadRequest, sink: int) -> tuple[Outcome, list[int]]:
        """Gives a client a lease of a model, which is loaded if it is not there; returns the answer and its files.

        Args:
            client: may be asked to load it.
            load_request: which model.
            sink: a descriptor for the output of the model's hosts; taken over.

        Raises:
            EOFError: the client hung up.
        """
        with self._changed:
            is_first = load_request.key not in self._models
            model = self._lend(client, load_request, sink)
        outcome = self._outcome(client, model)
        with self._changed:
            is_ready = model.is_ready
            if not is_ready:
                self._clients[client].model = None  # closing the model closes the sink, after the last output
            abandoned = self._release(None if is_ready else model)
        self._drop(*abandoned)
        if isinstance(outcome, ModelGrant):
            outcome = outcome._replace(is_first=is_first)
        weights = model.weights if is_ready else ()
        if weights:  # the client maps the model, so there is no host whose output could come
            model.remove_sink(client)
        return outcome, [self._page.file, *weights] if weights else []

    def _outcome(self, client: Channel, model: SharedModel) -> Outcome:
        """Waits until the model has been loaded."""
        with self._changed:
            while model.outcome is None:
                # No condition signals that this client hung up; without the poll, a load that no client wants any
                # more would run to its end instead of being dropped.
                self._changed.wait(_POLL_SECS)
                if client.has_hung_up():
                    raise EOFError
            return model.outcome

    def _lend(self, client: Channel, load_request: LoadRequest, sink: int) -> SharedModel:
        """Gives a client a lease of the model, which starts to load if it is not there."""
        model = self._models.get(load_request.key)
        if model is None:
            model = self._models[load_request.key] = SharedModel(load_request)
            name = f"loads {load_request.name}"
            threading.Thread(target=self._load, args=[model], name=name, daemon=True).start()
        model.leases += 1
        model.linger_secs = max(model.linger_secs, load_request.linger_secs)
        model.add_sink(client, sink)
        self._clients[client] = _Lessee(model, load_request.process, load_request.offers)
        return model

    def _load(self, model: SharedModel) -> None:
        key = model.load_request.key
        outcome: Outcome
        try:
            if model.load_request.refusal:  # an engine: each may take all memory of its device
                with self._changed:
                    idle = [one for one in self._models.values() if one.load_request.refusal and not one.leases]
                    idle = [one for one in idle if self._forget(one)]
                self._drop(*idle)
            need = max(self._peaks.get(key, 0), model.load_request.at_least or 0) or None
            refusal = self._wait_for_memory(model, need)
            if refusal:
                raise ModelMemoryError(model.load_request.name, refusal)
            outcome = model.load(lambda more: self._wait_for_memory(model, more), lambda: self._load_at_client(model))
        except HeadraceError as error:
            outcome = error
        except Exception as error:  # any error must reach the clients, or they would wait forever
            lines = traceback.format_exc().splitlines()
            outcome = HostStartError(model.load_request.name, f"{error!r}.", lines)
        with self._changed:
            self._loading.pop(model, None)
            if isinstance(outcome, ModelGrant) and outcome.exported.peak:
                self._peaks[key] = outcome.exported.peak
            model.outcome = outcome
            has_failed = not model.is_ready and self._forget(model)  # the next client triggers a new load
            is_forgotten = self._models.get(key) is not model
            self._changed.notify_all()
        if has_failed:
            self._drop(model)
        elif is_forgotten:
            model.close()  # it was dropped during the load: close what the load has added since

    def _load_at_client(self, model: SharedModel) -> tuple[Exported, list[int]] | None:
        """What a client exported that was asked to load the model; None if no client offers to.

        If the client ends before it has answered, the next one is asked.
        """
        while True:
            with self._changed:
                offers = [(one, uses) for one, uses in self._clients.items() if uses.model is model and uses.offers]
            if not offers:
                return None
            client, uses = offers[0]
            uses.offers = False
            with contextlib.suppress(EOFError, OSError):  # the thread that serves it only waits for the outcome
                client.send(LoadHere())
                return client.receive()

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
            self._drop(*evicted)

    def _a_client_is_leaving(self) -> bool:
        """Whether a client hung up whose lease has not ended yet: its model may be evicted in a moment."""
        return any(client.model is not None and channel.has_hung_up() for channel, client in self._clients.items())

    def _held(self) -> list[Held]:
        return [
            Held(key, model.nbytes, model.leases, model.last_used_ns / 1e9)
            for key, model in self._models.items()
            if model.is_ready
        ]

    def _release(self, model: SharedModel | None) -> list[SharedModel]:
        """Ends a lease, and counts those that compute; returns the model if the caller must drop it at once."""
        clients = [one for one in self._clients.values() if one.model is not None and one.model.weights]
        count_computing(self._page, len({client.process for client in clients}))
        if model is None:
            return []
        model.leases -= 1
        model.last_used_ns = self._clock.time_ns()
        is_kept = model.leases or (model.is_ready and model.linger_secs > 0)
        return [] if is_kept or not self._forget(model) else [model]

    def _forget(self, model: SharedModel) -> bool:
        """Hides a model from new clients; the caller must then drop it. Returns False if it was hidden already."""
        key = model.load_request.key
        if self._models.get(key) is not model:
            return False
        del self._models[key]
        self._dropping[model] = model.nbytes
        return True

    def _drop(self, *models: SharedModel) -> None:
        for model in models:
            try:
                model.close()
            finally:
                with self._changed:
                    del self._dropping[model]
                    self._changed.notify_all()

    def _expired(self) -> list[SharedModel]:
        now = self._clock.time_ns()
        idle = [model for model in self._models.values() if not model.leases]
        return [model for model in idle if self._expires_ns(model) <= now and self._forget(model)]

    @staticmethod
    def _expires_ns(model: SharedModel) -> float:
        return model.last_used_ns + model.linger_secs * 1e9

    def _next_expiry_secs(self) -> float | None:
        """Seconds until the next lingering model is due; None: none lingers."""
        due = [self._expires_ns(model) for model in self._models.values() if not model.leases]
        return max(0.0, (min(due) - self._clock.time_ns()) / 1e9) if due else None
