"""Engines in hosts. Of several copies, each request goes to the one that has computed its beginning, if it has room."""

from __future__ import annotations

import logging
import os
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.hosts.client import ModelHosts
from headrace.hosts.environment import visible_gpus
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.provider import HostProvider
from headrace.ipc.serialization import pickle_or_explain
from headrace.runtime.acquire import Report, acquire, lease_for
from headrace.runtime.engine_handler import EngineRequestHandler
from headrace.runtime.host_transport import HostTransport
from headrace.runtime.model_source import Loaded, LoadsOwn, ModelSource
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)

_BLOCK, _LONGEST = 64, 16_384
"""Bytes of a prompt that are looked up together, and of its beginning that count: some 16 tokens, as in vLLM."""
_REMEMBERED = 32_768
"""How many blocks of prompts are remembered of a copy: 2 MB of text, about what the cache of a large engine holds."""
_MOST_SLACK = 16


class PrefixRouter:
    """Chooses a copy for each request. Pure; not thread-safe.

    That is the copy which has had the longest beginning of the prompt before, if it is a quarter of the prompt or more:
    otherwise a short preamble that all prompts share would decide. Among equals it is the least loaded.

    Args:
        copies: how many there are.
        slack: how many more requests than the least loaded copy one may have, to be given another for its prefix.
    """

    def __init__(self, copies: int, slack: int) -> None:
        self._slack = slack
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(copies)]
        """Of each copy the checksums of beginnings that it has had, the latest last."""
        self._turn = 0

    def choose(self, prefix: str, loads: Sequence[int], is_up: Sequence[bool]) -> int:
        """The copy that gets a request: one of those that are up, unless none is."""
        blocks = _beginnings(prefix)
        copies = range(len(loads))
        candidates = [copy for copy in copies if is_up[copy]] or copies
        most = min(loads[copy] for copy in candidates) + self._slack
        self._turn += 1

        def rank(copy: int) -> tuple[int, int, int]:
            known = sum(1 for _ in takewhile(self._known[copy].__contains__, blocks))
            return known if 4 * known >= len(blocks) else 0, -loads[copy], (copy + self._turn) % len(loads)

        chosen = max((copy for copy in candidates if loads[copy] <= most), key=rank)
        self._remember(self._known[chosen], blocks)
        return chosen

    @staticmethod
    def _remember(known: OrderedDict[int, None], blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # what many prompts begin with is forgotten last
            known[block] = None
            known.move_to_end(block)
        while len(known) > _REMEMBERED:
            known.popitem(last=False)


def _beginnings(prefix: str) -> list[int]:
    """The checksums of a text's first block, its first two, and so on."""
    text = prefix[:_LONGEST].encode(errors="replace")[:_LONGEST]
    found, checksum = [], 0
    for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
        checksum = zlib.crc32(text[start : start + _BLOCK], checksum)
        found.append(checksum)
    return found


class EngineCopies:
    """Stands in for an engine that lives in hosts, which end, or are left to others, when this is garbage-collected.

    A copy whose host was lost gets no requests until it is up again. If it was idle then, it gets one, which starts it;
    if that fails, another copy has the request.

    Args:
        copies: each is loaded.
        room: how many requests each is given at a time.
        prefix: the handler's.
    """

    def __init__(self, copies: Sequence[HostTransport], room: int, prefix: Callable[[Any], str | None] | None) -> None:
        self._copies = copies
        self._prefix = prefix
        self._router = PrefixRouter(len(copies), min(_MOST_SLACK, room // 2))
        weakref.finalize(self, _close, copies)

    def predict(self, examples: Sequence[Any], inference_args: dict[str, Any] | None) -> Awaitable[list[Any]]:
        """As ``HostTransport.predict``; its errors do not refer to this object: who keeps one would keep the hosts."""
        if len(self._copies) == 1:
            return self._copies[0].predict(examples, inference_args)
        return self._routed(self._copies, self._router, self._prefix, examples, inference_args)

    @staticmethod
    async def _routed(
        copies: Sequence[HostTransport],
        router: PrefixRouter,
        prefix_of: Callable[[Any], str | None] | None,
        examples: Sequence[Any],
        inference_args: dict[str, Any] | None,
    ) -> list[Any]:
        prefix = "" if prefix_of is None else str(prefix_of(examples[0]) or "")
        is_up = [not (one.is_down and one.in_flight) for one in copies]
        for others in reversed(range(len(copies))):
            copy = copies[router.choose(prefix, [one.in_flight for one in copies], is_up)]
            try:
                return await copy.predict(examples, inference_args)
            except Exception:
                is_up = [not one.is_broken for one in copies]
                if not (others and copy.is_broken and any(is_up)):
                    raise
        raise AssertionError


class EngineSource(ModelSource):
    """Loads each engine in hosts, of its own or of the machine's; what this process gets stands in for it."""

    def __init__(self, spec: SessionSpec, report: Report) -> None:
        self._spec = spec
        self._report = report

    def load(self, name: Any, load_here: LoadsOwn) -> Loaded:
        """Waits until the engine is loaded, in a new host or in those that all processes of the machine share.

        Raises:
            ConfigurationError: there are fewer GPUs than copies.
        """
        spec, copies, gpus = self._spec, list[HostTransport](), len(visible_gpus(os.environ))
        if (count := spec.copies_of(name)) > gpus > 0:
            raise ConfigurationError(
                f"{spec.plan.name}: each of model_copies={count} engines needs a GPU of its own, and this "
                f"machine has {gpus}: ask for no more. Set CUDA_VISIBLE_DEVICES='' for engines on the CPU."
            )
        try:
            for number in range(count):
                provider, limit = self._provider(name), spec.timeout_secs
                hosts = ModelHosts(provider, spec.plan.name, limit, side_by_side=True, first=number)
                copies.append(HostTransport(spec, name, hosts, self._report))
                copies[-1].load()
        except BaseException:
            _close(copies)
            raise
        if name in spec.shared:
            text = "%s: the engine lives in %d hosts of the machine, for all of its worker processes."
            _LOGGER.info(text, spec.plan.name, count)
        handler = spec.plan.models[name]
        prefix = None if spec.plan.prebatched else handler.prefix
        return Loaded(EngineCopies(copies, handler.max_concurrent, prefix), spec.transform, {})

    def _provider(self, name: Any) -> HostProvider:
        label = self._spec.plan.name
        if name not in self._spec.shared:
            return ForkServerClient(pickle_or_explain(EngineRequestHandler(self._spec, name), label), label)
        return lease_for(self._spec, name, acquire(self._spec, name, self._report))

    def close(self) -> None:
        """Nothing: an engine's host, or the lease of it, ends with what stands in for it."""


def _close(copies: Sequence[HostTransport]) -> None:
    """Ends the hosts, unless others use them."""
    for one in copies:
        one.close()
