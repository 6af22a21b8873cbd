"""``headrace run --fallback``: other handlers for the rows that the first one's model could not do."""

from __future__ import annotations

import pytest

ROWS = [{"a": 1, "b": 2}, {"a": "x", "b": 4}, {"a": 5, "b": 6}, {"a": "y", "b": 8}]


@pytest.fixture
def run(folder, headrace, handlers):
    """Runs over two good rows and two bad ones, in between."""
    folder.write("in.jsonl", ROWS)

    def call(handler, fallback, *arguments):
        named = ("--handler", f"{handlers}:{handler}", "--fallback", f"{handlers}:{fallback}")
        return headrace("run", "in.jsonl", *named, "--output", "p.jsonl", *arguments)

    return call


def test_rows_that_fail_are_answered_by_the_fallback(folder, run):
    result = run("Add", "size", "--fallback-arg", "max_batch_size=1")
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [3, 1, 11, 1]
    assert (result.summary["by the fallback"], result.summary["dead letters"]) == ("2", "0")
    answered = [row.get("model_id") for row in folder.rows("p.jsonl")]
    assert answered == [None, "fallback", None, "fallback"]


def test_mistakes_name_the_options_of_the_fallback(folder, headrace, run, handlers):
    assert "--fallback: " in run("Add", "late").error
    assert "needs --fallback-model" in run("Add", "late").error
    assert "--fallback-arg plus=VALUE" in run("Add", "Add", "--fallback-arg", "pluss=1").error
    assert "--fallback-arg: " in run("Add", "late", "--fallback-arg", "model=1").error
    lone = headrace("run", "in.jsonl", "--handler", f"{handlers}:Add", "--output", "p.jsonl", "--fallback-model", "x")
    assert "go with --fallback" in lone.error


KNOWS = '''
import headrace


class Knows(headrace.ModelHandler):
    """Answers for numbers up to one, with the model's name."""

    def __init__(self, model, upto=0, **options):
        super().__init__(**options)
        self.model, self.upto = model, upto

    def load_model(self):
        return self.model

    def run_inference(self, batch, model, inference_args=None):
        if any(row["a"] > self.upto for row in batch):
            raise KeyError(model)
        return [model] * len(batch)
'''
NUMBERS = [{"a": n} for n in (1, 2, 3, 4)]


@pytest.fixture
def chain(own, headrace):
    """Runs ``Knows`` over numbers, with the fallbacks that the words name."""
    own.write("knows.py", KNOWS)
    own.write("in.jsonl", NUMBERS)

    def call(*words, source=("run", "in.jsonl")):
        named = ("--handler", "knows:Knows", "--model", "m0", "--handler-arg", "upto=1", "--output", "p.jsonl")
        return headrace(*source, *named, *words)

    return call


SECOND = ("--fallback", "knows:Knows", "--fallback-model", "m1", "--fallback-arg", "upto=2")
THIRD = ("--fallback=knows:Knows", "--fallback-arg=upto=3", "--fallback-arg", "max_batch_size=1", "--fallback-model=m2")


@pytest.mark.parametrize(
    "more",
    [(), ("--isolate",), ("--resume",), pytest.param(("--runner", "FnApiRunner"), marks=pytest.mark.large)],
    ids=str,
)
def test_each_of_several_fallbacks_has_the_options_behind_it(folder, chain, more):
    result = chain(*SECOND, *THIRD, *more)
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == ["m0", "m1", "m2"]
    assert (result.summary["by the fallback"], result.summary["dead letters"]) == ("2", "1")
    (letter,) = folder.rows("p.dead-letters.jsonl")
    assert letter["message"].count("KeyError") == 3


@pytest.mark.parametrize("other", [(*THIRD, *SECOND), SECOND, (*SECOND, *THIRD[:1], *THIRD[2:])], ids=str)
def test_resumed_run_needs_the_same_fallbacks_in_the_same_order(chain, other):
    kept = ("--resume", "--threshold", "0")
    assert chain(*SECOND, *THIRD, *kept).code == 3
    refused = chain(*other, *kept)
    assert refused.code == 2
    assert "fallback 2" in refused.error
    assert chain(*SECOND, *THIRD, "--resume", "--threshold", "0.5").code == 0


def test_option_before_all_of_several_fallbacks_is_refused(chain):
    refused = chain("--fallback-model", "m1", "--fallback", "knows:Knows", *THIRD)
    assert refused.code == 2
    assert (
        "there are 2 fallbacks; on the command line, put --fallback-model behind the --fallback that" in refused.error
    )
    assert "--fallback-model m1:" in refused.error


def test_file_of_options_describes_one_fallback(folder, chain):
    folder.write("shared/weights", "")
    options = 'fallback = "knows:Knows"\nfallback-model = "weights"\nfallback-arg = { upto = 9 }\n'
    folder.write("shared/headrace.toml", f"[run]\n{options}")
    assert chain("--config", "shared/headrace.toml").code == 0
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == ["m0"] + ["shared/weights"] * 3
    folder.write("shared/headrace.toml", f"[run]\n{options}".replace('"knows:Knows"', '["knows:Knows", "x:y"]'))
    assert "there are 2 fallbacks" in chain("--config", "shared/headrace.toml").error


def test_mistake_in_one_of_several_fallbacks_says_which(chain):
    assert "--fallback knows:Knows: " in chain(*SECOND, "--fallback", "knows:Knows").error
    assert "needs --fallback-model" in chain(*SECOND, "--fallback", "knows:Knows").error
    assert "there is no handler 'nobody'" in chain(*SECOND, "--fallback", "nobody").error
