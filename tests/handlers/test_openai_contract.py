"""OpenAI's handlers pass the suite for handlers."""

from __future__ import annotations

import pytest

from headrace.handlers.openai_inference import (
    OpenAIChatModelHandler,
    OpenAICompletionsModelHandler,
    OpenAIEmbeddingsModelHandler,
)
from headrace.testing import HandlerContract
from http_endpoint import serving
from openai_endpoint import speaking

pytestmark = [pytest.mark.large, pytest.mark.usefixtures("module_travels")]


@pytest.fixture(autouse=True)
def _key_in_the_environment(monkeypatch, requests_end):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")


@pytest.fixture
def server():
    with serving(speaking()) as server:
        yield server


class Unpooled:
    """A client for each request: the suite asks from one event loop after the other."""

    def create_client(self):
        return "of each request"

    async def request(self, batch, model, inference_args=None):
        assert model == "of each request"
        async with super().create_client() as client:
            return await super().request(batch, client, inference_args)


class UnpooledChat(Unpooled, OpenAIChatModelHandler):
    pass


class UnpooledCompletions(Unpooled, OpenAICompletionsModelHandler):
    pass


class UnpooledEmbeddings(Unpooled, OpenAIEmbeddingsModelHandler):
    pass


class OnTexts(HandlerContract):
    def examples(self):
        return ["a", "bb", "ccc", "dddd", "eeeee"]

    def bad_example(self):
        return 13


class TestChat(OnTexts):
    def handler(self, server):
        return UnpooledChat("m", url=f"{server.url}v1", num_retries=0)


class TestCompletions(OnTexts):
    def handler(self, server):
        return UnpooledCompletions("m", url=f"{server.url}v1", num_retries=0)


class TestEmbeddings(OnTexts):
    def handler(self, server):
        return UnpooledEmbeddings("m", url=f"{server.url}v1", num_retries=0)
