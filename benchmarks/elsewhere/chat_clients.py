"""Chats through a vendor's own client: ``python -m elsewhere.chat_clients CLIENT PORT COUNT [SEMAPHORE]``.

Prints how many answers were right, and the seconds from the first request to the last answer. With SEMAPHORE by hand,
so many requests at once; without, with Headrace.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anthropic
import openai

from headrace import predict
from headrace.handlers.anthropic_inference import AnthropicChatModelHandler
from headrace.handlers.openai_inference import OpenAIChatModelHandler

_HANDLERS: dict[str, Callable[..., Any]] = {"openai": OpenAIChatModelHandler, "anthropic": AnthropicChatModelHandler}


async def _ask_openai(client: Any, text: str) -> str:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return str(answer.choices[0].message.content)


async def _ask_anthropic(client: Any, text: str) -> str:
    chat = [{"role": "user", "content": text}]
    return str((await client.messages.create(model="m", max_tokens=1024, messages=chat)).content[0].text)


_BY_HAND: dict[str, tuple[Callable[..., Any], Callable[[Any, str], Awaitable[str]]]] = {
    "openai": (openai.AsyncOpenAI, _ask_openai),
    "anthropic": (anthropic.AsyncAnthropic, _ask_anthropic),
}


async def by_hand(name: str, url: str, texts: Sequence[str], at_once: int) -> list[str]:
    """The loop that one would write."""
    places = asyncio.Semaphore(at_once)
    make, ask = _BY_HAND[name]
    async with make(api_key="key", base_url=url, max_retries=0) as client:

        async def one(text: str) -> str:
            async with places:
                return await ask(client, text)

        return await asyncio.gather(*map(one, texts))


def main(name: str, port: str, count: str, at_once: str | None = None) -> None:
    """Has as many prompts answered."""
    url, texts = f"http://127.0.0.1:{port}/v1", [f"prompt {number}" for number in range(int(count))]
    began = time.perf_counter()
    if at_once is None:
        handler = _HANDLERS[name]("m", url=url, api_key="key")
        found = [one.inference for one in predict(handler, texts)]
    else:
        found = asyncio.run(by_hand(name, url, texts, int(at_once)))
    print(sum(map(str.__eq__, map(str.upper, texts), found)), time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
