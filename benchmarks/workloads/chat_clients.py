"""Chats through the clients of OpenAI and Anthropic from one process: Headrace, and a loop by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal

from workloads import by_hand
from workloads.remote import serving

TITLE = "Chats through the clients of OpenAI and Anthropic, from one process"

_CLIENTS = ("openai", "anthropic")
_COUNT = 4000

ABOUT = f"""\
A server in a process of its own answers each chat after {LATENCY_SECS * 1e3:.0f} ms, and has no quota: how many
requests a second there are depends on what the client costs. `OpenAIChatModelHandler` and `AnthropicChatModelHandler`
by `predict`, of {_COUNT:,} prompts, beside a loop with `AsyncOpenAI` or `AsyncAnthropic`. {by_hand.ABOUT}. The client
and the handler are made within the time that counts, imports are not. The sides take turns."""


GOALS = [
    Goal(f"Client of {client}: requests/s, Headrace / by hand", by_hand.beside_hand(client, "rate"), at_least=0.95)
    for client in _CLIENTS
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each client and side."""
    count = 100 if quick else _COUNT
    for client in _CLIENTS:
        for side, runs in by_hand.in_turn(client, partial(_run, client, count), "rate", repeats, quick=quick):
            yield {"client": side, "requests/s": f"{by_hand.middle(runs, 'rate'):.0f}", "runs": runs}


def _run(client: str, count: int, at_once: int | None) -> by_hand.Run:
    with serving(server="chat_server") as port:
        right, seconds = by_hand.asked("chat_clients", client, port, count, at_once=at_once)
    assert int(right) == count, "answers are wrong or missing"
    return {"rate": count / float(seconds), "at_once": float(at_once or 0)}
