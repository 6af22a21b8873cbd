"""Several copies of an engine: each request goes to the one that has computed its beginning, if that has room."""

from __future__ import annotations

import weakref
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

from headrace.runtime.hosted_engine import EngineHosts

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
    """Several copies of an engine, which take requests as one does.

    A copy whose host was lost gets none until it is up again. If it was idle then, it gets one, which starts it; if
    that fails, another copy has the request.

    Args:
        copies: each is loaded.
        room: how many requests each is given at a time.
        prefix: the handler's.
    """

    def __init__(self, copies: Sequence[EngineHosts], room: int, prefix: Callable[[Any], str | None] | None) -> None:
        self._copies = copies
        self._prefix = prefix
        self._router = PrefixRouter(len(copies), min(_MOST_SLACK, room // 2))

    async def predict(self, examples: Sequence[Any], inference_args: dict[str, Any] | None) -> list[Any]:
        """As ``EngineHosts.predict``."""
        prefix = "" if self._prefix is None else str(self._prefix(examples[0]) or "")
        is_up = [not (one.is_down and one.in_flight) for one in self._copies]
        for others in reversed(range(len(self._copies))):
            copy = self._copies[self._router.choose(prefix, [one.in_flight for one in self._copies], is_up)]
            try:
                return await copy.predict(examples, inference_args)
            except Exception:
                is_up = [not one.is_broken for one in self._copies]
                if not (others and copy.is_broken and any(is_up)):
                    raise
        raise AssertionError

    def close(self) -> None:
        """Ends the hosts, unless others use them."""
        for one in self._copies:
            one.close()


class HostedEngine:
    """Stands in for an engine that lives in hosts, which end, or are left to others, when this is garbage-collected.

    Args:
        hosts: where the engine is loaded.
    """

    def __init__(self, hosts: EngineHosts | EngineCopies) -> None:
        self._hosts = hosts
        weakref.finalize(self, hosts.close)

    def predict(self, examples: Sequence[Any], inference_args: dict[str, Any] | None) -> Awaitable[list[Any]]:
        """As ``EngineHosts.predict``, whose errors do not refer to this object: who keeps one would keep the host."""
        return self._hosts.predict(examples, inference_args)
