"""What the tests of several handlers need: folders of models."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

import saved_models
from headrace.ipc.weights_file import attach, export
from http_endpoint import KEY

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def save_bert(tmp_path_factory):
    """Saves a small BERT of a class; gives its folder."""
    return lambda cls, **options: saved_models.save_bert(tmp_path_factory.mktemp(cls.__name__), cls, **options)


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory):
    """A small language model in a folder. Generation is greedy, and a text ends with "[SEP]"."""
    import tokenizers
    import transformers

    places = {word: place for place, word in enumerate(saved_models.WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(places, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", eos_token="[SEP]"
    )
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }} {% endfor %}[CLS]"
    return saved_models.save_llama(tmp_path_factory.mktemp("llama"), tokenizer, "[CLS]", 32, 64)


@pytest.fixture(scope="session")
def assert_mappable():
    """Asserts that a handler goes into shared memory together with its loaded model, and comes out of it."""

    def check(handler):
        files, layout = export((handler, handler.load_model()), destroys=True)
        try:
            attach(files, layout)
        finally:
            for file in files:
                os.close(file)

    return check


@pytest.fixture(scope="session")
def incumbent_huggingface():
    """Beam's module, which cannot be imported with transformers 5 unless a name is put back there."""
    name = "apache_beam.ml.inference.huggingface_inference"
    with suppress(ImportError):  # where transformers is made anew by what Beam imports, the name would be lost
        return importlib.import_module(name)
    transformers = importlib.import_module("transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers, "TFAutoModel", transformers.AutoModel, raising=False)
        return importlib.import_module(name)


@pytest.fixture
def stand_in_vllm(monkeypatch):
    """Puts a package named vllm, whose server is small and needs no GPU, where processes started from here find it."""
    stand_ins = Path(__file__).with_name("stand_ins")
    monkeypatch.setenv("PYTHONPATH", str(stand_ins), prepend=os.pathsep)


@pytest.fixture
def _keys_in_the_environment(monkeypatch):
    """Keys of all providers, and no URL."""
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    for name in ("GOOGLE_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _plain_clients_are_closed(monkeypatch):
    from headrace.handlers.anthropic_inference import AnthropicModelHandler

    made, create = [], AnthropicModelHandler.create_client
    monkeypatch.setattr(AnthropicModelHandler, "create_client", lambda self: made.append(create(self)) or made[-1])
    yield
    for client in made:
        client.close()
