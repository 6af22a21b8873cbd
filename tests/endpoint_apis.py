"""The APIs of models behind endpoints, each with its handler, and with what a server on localhost answers."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import pytest

import anthropic_endpoint
import gemini_endpoint
import openai_endpoint
from headrace.handlers.anthropic_inference import AnthropicChatModelHandler
from headrace.handlers.gemini_inference import GeminiModelHandler
from headrace.handlers.openai_inference import (
    OpenAIChatModelHandler,
    OpenAICompletionsModelHandler,
    OpenAIEmbeddingsModelHandler,
)
from http_endpoint import serving


class Api(NamedTuple):
    """A provider's API, and the handler that asks it."""

    kind: Any
    endpoint: ModuleType
    path: str = ""
    options: dict[str, Any] = {}

    def handler(self, server, **options):
        return self.kind("m", url=f"{server.url}{self.path}", **{**self.options, **options})

    def refusal(self, status, said="refused"):
        return self.endpoint.refusing(status, said)

    def texts(self, asked):
        if self.endpoint is gemini_endpoint:
            return [gemini_endpoint.prompt_of(asked)]
        return openai_endpoint.prompts_of(asked)

    def serving(self, fault=lambda asked, before: None):
        return serving(self.endpoint.speaking(fault=fault))

    def refusing(self, answer, *prompts):
        """A server that answers prompts, but for these; without any, none."""
        return self.serving(
            lambda asked, before: answer if not prompts or set(prompts) & set(self.texts(asked)) else None
        )

    def asked(self, server):
        return sorted(text for asked in server.requests for text in self.texts(asked))

    def prediction(self, text):
        """What is predicted for a text."""
        return openai_endpoint.vector_of(text) if self is EMBEDDINGS else text.upper()


APIS = {
    "chat": Api(OpenAIChatModelHandler, openai_endpoint, "v1"),
    "completions": Api(OpenAICompletionsModelHandler, openai_endpoint, "v1"),
    "anthropic": Api(AnthropicChatModelHandler, anthropic_endpoint),
    "gemini": Api(GeminiModelHandler, gemini_endpoint, options={"full_answer": False}),
}
EMBEDDINGS = Api(OpenAIEmbeddingsModelHandler, openai_endpoint, "v1")


def each(*but):
    """Runs a test with every API but these."""
    some = {name: api for name, api in {**APIS, "embeddings": EMBEDDINGS}.items() if name not in but}
    return pytest.mark.parametrize("api", some.values(), ids=some)
