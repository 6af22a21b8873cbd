"""What words that are out of place most likely mean, and what is most likely wrong when no row has a prediction."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from headrace.cli.columns import listed, why_unexpected
from headrace.cli.handlers import handler_names
from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile, recognise
from headrace.core.secrets import MASK, SECRET_ARGUMENTS

_TAKES = {
    "sklearn": "a pickle, or with --handler-arg model_file_type=joblib or skops a file of those",
    "onnx": "an ONNX file",
    "pytorch": "a state dict with model_class, or TorchScript or .pt2 as torch_script_model_path",
    "tensorflow": "a SavedModel, .keras or .h5, or weights with create_model_fn",
    "xgboost": "a file of XGBoost's save_model",
    "tensorrt": "a serialized engine, built by the same version on the same kind of GPU",
    "huggingface": "a folder of save_pretrained, or an id on the hub",
    "sentence": "a folder of SentenceTransformer.save, or an id on the hub",
}
"""What the handlers load, by the beginning of their names."""
_INSTEAD = {
    "--input": "name the files without an option: headrace run FILE ...",
    "--batch-size": "write --max-batch-size, and --min-batch-size for the fewest",
    "--device": "it is the handler's: --handler-arg device=GPU",
    "--gpu": "it is the handler's: --handler-arg device=GPU",
    "--api-key": "set OPENAI_API_KEY, or the variable of your provider, in the environment",
    "--temperature": "it is the model's: --inference-arg temperature=0",
    "--max-tokens": "it is the model's: --inference-arg max_tokens=100",
    "--system": "it is the handler's: --handler-arg system='Be brief.'",
    "--json-schema": "it is the handler's: --handler-arg json_schema=FILE",
    "--workers": "processes are Beam's: --direct_num_workers=4 --direct_running_mode=multi_processing",
    "--limit": "it is headrace run's; give headrace retry fewer dead letters: head -n 100 FILE > some.jsonl",
}
"""What to do in place of options that other tools have."""


_NOT_OF_INPUT = re.compile("Connect|Timeout|HostDied|Status|RateLimit|Permission|Auth|PredictionCount|Memory")
"""In the names of errors that no choice of columns changes."""
_AFTER_THE_MODEL = ("postprocessing", "writing")


def misplaced(words: Sequence[str], columns: Sequence[str] | None, *, has_pairs: bool) -> str | None:
    """What to do about a word among the inputs that is most likely no input; None if there is none.

    Args:
        words: inputs and options of Beam's.
        columns: what ``--columns`` was given; a second name after a blank is taken for an input.
        has_pairs: whether an option was given that takes key=value; a second pair is taken for an input, too.
    """
    for word in words:
        option = word.partition("=")[0]
        if option in _INSTEAD:
            return f"there is no option {option}; {_INSTEAD[option]}."
        if word.startswith("-") or os.path.exists(word):
            continue
        if has_pairs and (pair := re.match(r"(\w+)=", word)):
            shown = f"{pair[1]}={MASK}" if pair[1] in SECRET_ARGUMENTS else word
            return f"there is no file {shown!r}; if it is for the handler, repeat the option: --handler-arg {shown}."
        if columns and re.fullmatch(r"[\w*?]+", word):
            names = ",".join([*columns, word])
            return f"there is no file {word!r}; if it is a column, separate columns by commas: --columns {names}."
    return None


def about_model(handler: str, model: str) -> str:
    """The end of a sentence about a model file that a handler cannot load; empty if nothing is known."""
    own = handler.partition("-")[0]
    if handler not in handler_names() or own not in _TAKES:
        return ""
    known = None
    if os.path.isfile(model) or os.path.isdir(model):
        with suppress(ConfigurationError, OSError):
            known = recognise(ModelFile(model))
    found = f"; the file is {known.what}: --handler {known.handler}" if known and known.handler != handler else ""
    return f"; {handler} takes {_TAKES[own]}{found}"


def about_failures(
    failures: Collection[tuple[str, str]], columns: Sequence[str], handler: Any = None, *, chosen: bool, retried: bool
) -> str:
    """A sentence about what is most likely wrong when every row failed; empty if it is not in the input.

    Args:
        failures: stages and types of errors.
        columns: those that the model was given.
        handler: of the run, if it is known.
        chosen: whether an option named them.
        retried: whether the rows are those of dead letters.
    """
    if all(stage == "reading" for stage, _ in failures):
        if retried:
            return " No row could be read; correct the lines in the dead letters."
        return " No row could be read; the dead letters have the lines, and --format and --delimiter say what they are."
    before = [error for stage, error in failures if stage not in _AFTER_THE_MODEL]
    is_of_input = any(not _NOT_OF_INPUT.search(error) for error in before)
    return f"{about_columns(columns, chosen=chosen)}{about_preprocessing(handler)}" if is_of_input else ""


def about_columns(columns: Sequence[str], *, chosen: bool) -> str:
    """A sentence about the columns that the model was given, when every row failed."""
    if not columns:
        return ""
    which = f"the {'column' if len(columns) == 1 else f'{len(columns):,} columns'} {listed(columns)}"
    cure = "if it needs others, name them with --columns" if chosen else "choose its columns with --columns"
    return f" The model was given {which}; {cure}.{why_unexpected(columns)}"


def about_preprocessing(handler: Any) -> str:
    """A sentence about functions that make the examples in place of the handler; empty if it makes them itself."""
    from headrace.runtime.plan import make_plan  # noqa: PLC0415 - only where it is needed

    if handler is None:
        return ""
    plan = make_plan(handler)
    model = next(iter(plan.models.values()))
    if not plan.preprocess or not hasattr(model, "example_from_row"):
        return ""
    card = getattr(model, "card", None)
    takes = f", {card.example.replace('`', '')}" if card else ""
    return (
        f" The handler's own preprocessing replaces the example_from_row of {type(model).__qualname__}: its first "
        f"function gets a dict of the columns, or the bare value of a single one in --columns, and the last has to "
        f"return what the model takes{takes}."
    )
