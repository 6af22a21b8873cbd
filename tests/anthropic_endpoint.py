"""What a server on localhost answers that speaks Anthropic's API; with ``http_endpoint.serving`` it is one."""

from __future__ import annotations

import sys

import cloudpickle

from http_endpoint import Answer

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LONGEST = 1000
"""Characters of a prompt that is not too long."""


def message(text, stop="end_turn", model="m"):
    """Claude's message; None: without a text."""
    content = [] if text is None else [{"type": "text", "text": text}]
    usage = {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": None}
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content, "usage": usage}
    return Answer(body={**body, "stop_reason": stop, "stop_sequence": None})


def refusing(status, text="refused", kind="invalid_request_error", headers=None):
    """An error as Anthropic says it."""
    return Answer(status, {"type": "error", "error": {"type": kind, "message": text}}, headers or {})


def speaking(text_of=str.upper, fault=lambda asked, before: None):
    """How such a server answers.

    Args:
        text_of: the answer to the last message of a conversation.
        fault: from (request, how many came before) to an Answer; None: all is well.
    """

    def answer(asked, before):
        wrong = fault(asked, before)
        if wrong is not None:
            return wrong
        prompt = asked["messages"][-1]["content"]
        if len(prompt) > LONGEST:
            return refusing(400, f"prompt is too long: {len(prompt)} > {LONGEST}")
        return message(text_of(prompt), model=asked["model"])

    return answer
