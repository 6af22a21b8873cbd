"""Chats through the clients of OpenAI and Anthropic from one process: Headrace, and a loop by hand."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, of, ratios

from workloads.remote import serving

TITLE = "Chats through the clients of OpenAI and Anthropic, from one process"

_CLIENTS = ("openai", "anthropic")
_COUNT = 4000
_SEMAPHORES = (8, 32, 128)
_OURS, _BY_HAND = "Headrace", "by hand"

ABOUT = f"""\
A server in a process of its own answers each chat after {LATENCY_SECS * 1e3:.0f} ms, and has no quota: how many
requests a second there are depends on what the client costs. `OpenAIChatModelHandler` and `AnthropicChatModelHandler`
by `predict`, of {_COUNT:,} prompts, beside a loop with `AsyncOpenAI` or `AsyncAnthropic` and a semaphore of
{", ".join(map(str, _SEMAPHORES))}, of which the best counts. The client and the handler are made within the time
that counts. The sides take turns."""


def _case(client: str, side: str) -> str:
    return f"{client}, {side}"


def _beside_hand(client: str) -> Any:
    ours, by_hand = (of(_case(client, side), "rate") for side in (_OURS, _BY_HAND))
    return lambda results: ratios(ours(results), by_hand(results))


GOALS = [
    Goal(f"Client of {client}: requests/s, Headrace / by hand", _beside_hand(client), at_least=0.95)
    for client in _CLIENTS
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - needs no files
    """One row for each client and side."""
    count = 100 if quick else _COUNT
    for client in _CLIENTS:
        runs: dict[str, list[dict[str, float]]] = {_OURS: [], _BY_HAND: []}
        for _ in range(repeats):
            runs[_OURS].append(_run(client, count))
            by_hand = [_run(client, count, at_once) for at_once in (_SEMAPHORES[1:2] if quick else _SEMAPHORES)]
            runs[_BY_HAND].append(max(by_hand, key=lambda run: run["rate"]))
        for side, some in runs.items():
            yield {
                "client": _case(client, side),
                "requests/s": f"{statistics.median(run['rate'] for run in some):.0f}",
                "runs": some,
            }


def _run(client: str, count: int, at_once: int | None = None) -> dict[str, float]:
    with serving(server="chat_server") as port:
        words = map(str, (client, port, count) if at_once is None else (client, port, count, at_once))
        command = [sys.executable, "-m", "elsewhere.chat_clients", *words]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    right, seconds = done.stdout.split()
    assert int(right) == count, "answers are wrong or missing"
    return {"rate": count / float(seconds), "at_once": float(at_once or 0)}
