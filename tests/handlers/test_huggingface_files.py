"""The folder of a model of transformers names its task, that of sentence-transformers its modules."""

from __future__ import annotations

import json

import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import huggingface as recognise


def known_of(folder, settings, *others):
    (folder / "config.json").write_text(json.dumps(settings))
    for name in others:
        (folder / name).write_text("[]")
    return recognise(ModelFile(str(folder)))


@pytest.mark.parametrize(
    ("architecture", "handler", "arguments", "takes"),
    [
        ("BertForSequenceClassification", "huggingface-pipeline", {"task": "text-classification"}, "text"),
        ("RobertaForTokenClassification", "huggingface-pipeline", {"task": "token-classification"}, "text"),
        ("ViTForImageClassification", "huggingface-pipeline", {"task": "image-classification"}, "text"),
        ("Qwen2ForCausalLM", "huggingface-generation", {}, "rows"),
        ("GPT2LMHeadModel", "huggingface-generation", {}, "rows"),
    ],
)
def test_the_architecture_decides(tmp_path, architecture, handler, arguments, takes):
    known = known_of(tmp_path, {"architectures": [architecture], "model_type": "some"})
    assert (known.handler, known.arguments, known.takes) == (handler, arguments, takes)
    assert architecture in known.what


def test_modules_are_those_of_sentence_transformers(tmp_path):
    known = known_of(tmp_path, {"architectures": ["BertModel"]}, "modules.json")
    assert (known.handler, known.takes) == ("sentence-transformer", "text")


@pytest.mark.parametrize("settings", [{"architectures": ["BertModel"]}, {"model_type": "bert"}])
def test_a_model_for_several_tasks_needs_one(tmp_path, settings):
    with pytest.raises(ConfigurationError, match="--handler-arg task=TASK"):
        known_of(tmp_path, settings)


def test_other_folders_are_none_of_these(tmp_path):
    assert known_of(tmp_path, {"name": "nothing"}) is None
    assert known_of(tmp_path, [1]) is None
