"""Classifies or embeds a file of texts by hand: ``texts.py TASK MODEL INPUT OUTPUT BATCH``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

Predict = Callable[[Sequence[str], int], Sequence[Any]]


def load(task: str, folder: str) -> Any:
    """The model, as its library loads it."""
    if task == "classify":
        import transformers  # noqa: PLC0415 - only one of two is needed

        return transformers.pipeline("text-classification", folder, device="cpu")
    import sentence_transformers  # noqa: PLC0415 - the same

    return sentence_transformers.SentenceTransformer(folder, device="cpu")


def predict(task: str, model: Any, texts: Sequence[str], size: int) -> Sequence[Any]:
    """The library's own call, on the texts sorted by length; answers are in the order of the texts."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    ordered = [texts[index] for index in order]
    if task == "classify":
        answers = model(ordered, batch_size=size)
    else:
        answers = model.encode(ordered, batch_size=size, show_progress_bar=False)
    places = {place: index for index, place in enumerate(order)}
    return [answers[places[place]] for place in range(len(texts))]


def main(task: str, folder: str, source: str, output: str, size: str) -> None:
    """JSON lines with a field ``text`` to the same with a field ``prediction``."""
    rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
    answers = predict(task, load(task, folder), [row["text"] for row in rows], int(size))
    with Path(output).open("w") as file:
        for row, answer in zip(rows, answers, strict=True):
            plain = answer if task == "classify" else answer.tolist()
            file.write(json.dumps({**row, "prediction": plain}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
