"""What a server on localhost answers that speaks Gemini's API; with ``http_endpoint.serving`` it is one."""

from __future__ import annotations

import sys

import cloudpickle

from http_endpoint import Answer

cloudpickle.register_pickle_by_value(sys.modules[__name__])

USED = {
    "promptTokenCount": 7,
    "toolUsePromptTokenCount": 1,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 5,
    "cachedContentTokenCount": 2,
}


def prompt_of(asked):
    """The text of the only content in a request."""
    (content,) = asked["contents"]
    return "".join(part.get("text", "") for part in content["parts"])


def candidate(text=None, finish="STOP", **more):
    """One of the answers in a response; None: without content."""
    content = {} if text is None else {"content": {"role": "model", "parts": [{"text": text}]}}
    return {**content, "finishReason": finish, **more}


def response(*candidates, **more):
    return Answer(body={"candidates": list(candidates), "usageMetadata": USED, "modelVersion": "m-1", **more})


def blocked(reason="SAFETY", **more):
    """What Gemini answers if it does not like the prompt: a response without candidates."""
    return Answer(body={"promptFeedback": {"blockReason": reason, **more}, "usageMetadata": {"promptTokenCount": 7}})


def refusing(status, name, *details, headers=None):
    """An error as Google says it."""
    error = {"code": status, "message": f"refused: {name}", "status": name, "details": list(details)}
    return Answer(status, {"error": error}, headers or {})


def wrong_key():
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    return refusing(400, "INVALID_ARGUMENT", info)


def busy(delay):
    """Too many requests; Google says in the body when to come back."""
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    return refusing(429, "RESOURCE_EXHAUSTED", {"@type": "type.googleapis.com/google.rpc.Help"}, info)


def speaking(text_of=str.upper, fault=lambda asked, before: None):
    """How such a server answers.

    Args:
        text_of: the answer to a prompt.
        fault: from (request, how many came before) to an Answer; None: all is well.
    """
    return lambda asked, before: fault(asked, before) or response(candidate(text_of(prompt_of(asked))))
