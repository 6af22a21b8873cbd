"""An HTTP server that answers chats for OpenAI's and Anthropic's clients: ``python -m elsewhere.chat_server``.

Each answer takes the latency of ``quota_server``; there is no quota. It prints its port.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from elsewhere.quota_server import LATENCY_SECS, QuotaServer, serve

_SAME = {"id": "1", "model": "m", "created": 0, "object": "chat.completion", "type": "message", "role": "assistant"}
_COUNTS = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "input_tokens": 1, "output_tokens": 1}
_ENDS = {"stop_reason": "end_turn", "usage": _COUNTS}


class ChatServer(QuotaServer):
    """Answers each prompt with itself in capitals, in the fields of both APIs."""

    async def _answer(self, body: bytes) -> tuple[int, Any]:
        text = json.loads(body)["messages"][-1]["content"].upper()
        await asyncio.sleep(LATENCY_SECS)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return 200, {**_SAME, **_ENDS, "choices": [choice], "content": [{"type": "text", "text": text}]}


if __name__ == "__main__":
    asyncio.run(serve(ChatServer([(0.0, 1.0)])))
