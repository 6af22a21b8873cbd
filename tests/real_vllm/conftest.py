"""Tests of the handlers of vLLM with vLLM itself, on the CPU, in an environment of its own: make test-vllm.

Other environments leave them out. The model is small and random: no model comes from the hub.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from saved_models import save_llama

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    """A Llama of random weights that reads and writes single bytes, so that it can be made to write JSON."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    bytes_only = Tokenizer(models.BPE(vocabulary, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "{% for one in messages %}{{ one['role'] }}:{{ one['content'] }}\n{% endfor %}"
    return save_llama(tmp_path_factory.mktemp("model"), tokenizer, "<s>", 64, 2048)


@pytest.fixture
def descendants():
    """The names, by process id, of what runs that this process has started, or what it has started did."""
    import psutil  # vLLM brings it

    return lambda: {one.pid: " ".join(one.cmdline()).strip() for one in psutil.Process().children(recursive=True)}
