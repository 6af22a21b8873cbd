"""``headrace run --fallback``: other handlers for the rows that the first one's model could not do."""

from functools import partial

import pytest

NUMBERS = [{"a": n} for n in (1, 2, 3, 4)]


def test_rows_that_fail_are_answered_by_the_fallback(folder, run, handlers):
    folder.write("in.jsonl", [{"a": 1, "b": 2}, {"a": "x", "b": 4}, {"a": 5, "b": 6}, {"a": "y", "b": 8}])
    result = run("--fallback", f"{handlers}:Size", "--fallback-arg", "max_batch_size=1")
    assert (result.code, result.err) == (0, "")
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [3, 1, 11, 1]
    assert (result.summary["by the fallback"], result.summary["dead letters"]) == ("2", "0")
    answered = [row.get("model_id") for row in folder.rows("p.jsonl")]
    assert answered == [None, "fallback", None, "fallback"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--fallback {}:late", "--fallback: "),
        ("--fallback {}:late", "needs --fallback-model"),
        ("--fallback {}:Add --fallback-arg pluss=1", "--fallback-arg plus=VALUE"),
        ("--fallback {}:late --fallback-arg model=1", "--fallback-arg: "),
        ("--fallback-model x", "go with --fallback"),
        ("--fallback {}:Add --fallback-arg element_size_fn={}:zz", "-arg element_size_fn={}:zz: {} has no 'zz'"),
    ],
)
def test_mistakes_name_the_options_of_the_fallback(folder, mistake, handlers, words, said):
    folder.write("in.jsonl", NUMBERS)
    assert said.replace("{}", handlers) in mistake(*words.replace("{}", handlers).split())


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


@pytest.fixture
def chain(own, run):
    """Runs ``Knows`` over numbers, with the fallbacks that the words name."""
    own.write("knows.py", KNOWS)
    own.write("in.jsonl", NUMBERS)
    return partial(run, "--model", "m0", "--handler-arg", "upto=1", handler="knows:Knows")


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
    error = chain("--fallback-model", "m1", "--fallback", "knows:Knows", *THIRD).error
    assert "there are 2 fallbacks; on the command line, put --fallback-model behind the --fallback that" in error
    assert "--fallback-model m1:" in error


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
