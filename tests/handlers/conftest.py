"""What the tests of several handlers need: folders of models, and a look at Beam's arguments."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

from beam_compat import assert_accepts
from headrace.ipc.weights_file import attach, export

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: no model of these tests is on the hub

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "good", "bad", "film", "the", "is"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def accepts_all_of():
    return assert_accepts


@pytest.fixture(scope="session")
def save_bert(tmp_path_factory):
    """Saves a small BERT with a tokenizer of few words, as users do; gives its folder."""
    import torch
    import transformers

    def save(model_class, **options):
        folder = tmp_path_factory.mktemp(model_class.__name__)
        folder.joinpath("words.txt").write_text("\n".join(WORDS))
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes, **options)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model_class(config).save_pretrained(folder)
        transformers.BertTokenizer(str(folder / "words.txt"), model_max_length=32).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory):
    """A small language model with a tokenizer of few words and a chat template, saved as users do; gives its folder.

    Generation is greedy, and a text ends with "[SEP]".
    """
    import tokenizers
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("llama")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", eos_token="[SEP]"
    )
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }} {% endfor %}[CLS]"
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), max_position_embeddings=64, bos_token_id=2, eos_token_id=3, pad_token_id=0, **sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.LlamaForCausalLM(config)
        torch.nn.init.normal_(model.lm_head.weight)  # or every text would be one word, repeated
        torch.nn.init.normal_(model.model.embed_tokens.weight)
        model.save_pretrained(folder)
    return str(folder)


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
