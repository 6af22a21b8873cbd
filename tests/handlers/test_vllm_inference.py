"""Language models in a server of their own: asked with OpenAI's client, over HTTP, of a stand-in for vLLM's server.

The stand-in is started by the handler's own command, as a process of its own.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections import Counter
from contextlib import nullcontext

import apache_beam as beam
import openai
import pytest
from apache_beam.ml.inference import vllm_inference as incumbent
from apache_beam.ml.inference.base import RunInference as BeamsRunInference
from apache_beam.testing.util import assert_that, equal_to

from headrace import ConfigurationError, Failure, MissingExtraError, RetryConfig, UnsupportedError, predict
from headrace.beam import RunInference
from headrace.handlers.vllm_inference import (
    OpenAIChatMessage,
    VLLMChatModelHandler,
    VLLMCompletionsModelHandler,
    _VLLMModelServer,
)
from headrace.testing import HandlerContract
from toys import infer
from waiting import wait_until

pytestmark = pytest.mark.large

MODEL = "someone/some-model"
PROMPTS = ["once upon", "a time", "there was", "a wheel"]
CHATS = [[OpenAIChatMessage("system", "be brief"), OpenAIChatMessage("user", prompt)] for prompt in PROMPTS]
AT_ONCE = {"min_batch_size": 16, "max_batch_size": 16}
TWICE = RetryConfig(attempts=2)


SERVERS = {}


class _Here:
    """In this process, one server for all: through the machine's host each test would take seconds."""

    def share_model_across_processes(self):
        return False

    def load_model(self):
        if type(self) not in SERVERS:
            SERVERS[type(self)] = super().load_model()
        return SERVERS[type(self)]


class CompletionsHere(_Here, VLLMCompletionsModelHandler):
    pass


class ChatHere(_Here, VLLMChatModelHandler):
    pass


@pytest.fixture(scope="module", autouse=True)
def _servers_end():
    yield
    for server in SERVERS.values():  # Beam's transform keeps the last model
        server.running().stop()
    SERVERS.clear()


@pytest.fixture(autouse=True)
def _stand_in(stand_in_vllm):
    pass


@pytest.fixture
def log(tmp_path):
    """What the server was asked, in its order."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def starts(caplog):
    """How often a server has been started."""
    caplog.set_level("INFO", "headrace.vllm")
    return lambda: len([text for text in caplog.messages if re.match("loading ", text)])


def text_of(prediction):
    (choice,) = prediction.inference.choices
    return choice.text


def texts(predictions):
    return list(map(text_of, predictions))


class TestCompletionsContract(HandlerContract):
    bad_example = "400"
    examples = PROMPTS
    inference_args = {"max_tokens": 6}

    def handler(self):
        return CompletionsHere(MODEL, {"max-num-seqs": 4}, max_batch_size=4)

    def equal(self, a, b):
        return a.inference.choices == b.inference.choices


class TestChatContract(TestCompletionsContract):
    bad_example = "no messages"
    examples = CHATS
    inference_args = None

    def handler(self):
        return ChatHere(MODEL)


def here(handler, prompts, **options):
    """The texts, and what failed, in the order of the prompts."""
    outcomes = predict(handler, prompts, placement="process", retry=TWICE, on_failure="yield", **options)
    return [outcome if isinstance(outcome, Failure) else text_of(outcome) for outcome in outcomes]


class Local(VLLMCompletionsModelHandler):
    """Loads as an example of Beam's does, whose model is first copied to a local folder."""

    def share_model_across_processes(self):
        return False

    def load_model(self):
        assert self._model_name == "gs://some/model"
        return _VLLMModelServer("/a/local/model", self._vllm_server_kwargs)


def test_handler_that_makes_beams_server_class_itself_runs():
    handler = Local("gs://some/model", {"served-model-name": "gs://some/model"})
    (result,) = infer(handler, ["once"])
    assert result.inference.choices[0].text


class Renamed(VLLMCompletionsModelHandler):
    """Sets what the server is started with, as handlers do that fetch the model first."""

    def share_model_across_processes(self):
        return False

    def load_model(self):
        self._model_name = "/a/local/model"
        self._vllm_server_kwargs = {"served-model-name": "short"}
        return super().load_model()


def test_derived_handlers_set_beams_attributes():
    (result,) = infer(Renamed("placeholder", {"max-num-seqs": 8}), ["once"])
    assert (result.inference.model, result.model_id) == ("short", "/a/local/model")
    handler = VLLMCompletionsModelHandler(MODEL)
    handler._use_dynamo = True
    with pytest.raises(UnsupportedError, match="use_dynamo=True"):
        handler.load_model()


def test_handlers_take_beams_arguments(accepts_all_of):
    accepts_all_of(VLLMCompletionsModelHandler, incumbent.VLLMCompletionsModelHandler, "model_name")
    accepts_all_of(VLLMChatModelHandler, incumbent.VLLMChatModelHandler, "model_name")


def test_predictions_are_the_clients_own_objects():
    (completion,) = infer(CompletionsHere(MODEL), ["a wheel"])
    assert (completion.example, completion.model_id) == ("a wheel", MODEL)
    assert isinstance(completion.inference, openai.types.Completion)
    (chat,) = infer(ChatHere(MODEL), CHATS[:1])
    assert isinstance(chat.inference, openai.types.chat.ChatCompletion)
    assert chat.inference.choices[0].message.content == "SYSTEM:BE BRIEF USER:ONCE UPON"


def test_prompts_of_a_batch_are_sent_concurrently():
    results = infer(VLLMCompletionsModelHandler(MODEL), ["beside 15"] * 16)
    assert max(result.inference.usage.prompt_tokens for result in results) == 16  # of so many the server has known


def test_proxies_are_ignored_for_the_local_server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert texts(infer(VLLMCompletionsModelHandler(MODEL), ["hello"])) == ["HELLO"]


def test_bad_prompt_fails_alone_and_no_good_one_is_sent_twice(log):
    prompts = [*PROMPTS, "400", *PROMPTS]
    handler = VLLMCompletionsModelHandler(MODEL, {"log": str(log)}, **AT_ONCE)
    *first, failure, a, b, c, d = here(handler, prompts)
    assert [*first, a, b, c, d] == [prompt.upper() for prompt in PROMPTS * 2]
    assert isinstance(failure.error, openai.BadRequestError)
    asked = Counter(log.read_text().splitlines())
    assert asked.pop("400") == 1
    assert asked == dict.fromkeys(PROMPTS, 2)


def test_server_that_dies_is_replaced_and_the_batch_repeated(tmp_path, starts, caplog):
    lethal = f"die once {tmp_path / 'died'}"
    prompts = [*PROMPTS, lethal]
    assert here(VLLMCompletionsModelHandler(MODEL, **AT_ONCE), prompts) == [prompt.upper() for prompt in prompts]
    assert starts() == 2
    assert "the vLLM server of someone/some-model was killed by SIGKILL; its last lines:" in caplog.text
    assert "the engine is on fire; another one is started" in caplog.text


def test_server_whose_engine_is_dead_is_ended_and_replaced(tmp_path, starts):
    lethal = f"engine dies once {tmp_path / 'died'}"
    assert here(VLLMCompletionsModelHandler(MODEL), [lethal]) == [lethal.upper()]
    assert starts() == 2


def test_errors_do_not_keep_the_server():
    """Not even until the next collection of cycles, of which errors of lost connections have some."""
    servers = []

    class Watched(CompletionsHere):
        def load_model(self):
            server = VLLMCompletionsModelHandler.load_model(self)
            servers.append(weakref.ref(server))
            return server

    gc.disable()
    try:
        _, failure = here(Watched(MODEL, **AT_ONCE), ["hello", "die"])
        assert isinstance(failure, Failure)
        assert wait_until(lambda: [server() for server in servers] == [None])  # its thread ends a moment later
    finally:
        gc.enable()


def test_chat_template_is_read_on_the_worker(tmp_path):
    (tmp_path / "template.jinja").write_text("{{ é }} ")
    handler = VLLMChatModelHandler(MODEL, tmp_path / "template.jinja")
    (result,) = infer(handler, [[OpenAIChatMessage("user", "hi")]])
    assert result.inference.choices[0].message.content == "{{ É }} USER:HI"
    with pytest.raises(FileNotFoundError):
        VLLMChatModelHandler(MODEL, str(tmp_path / "none.jinja")).load_model()


def test_rows_become_conversations():
    handler = VLLMChatModelHandler(MODEL)
    assert handler.example_from_row({"question": "why?"}) == [OpenAIChatMessage("user", "why?")]
    assert handler.example_from_row({"system": "be brief", "user": "once upon"}) == CHATS[0]
    with pytest.raises(ValueError, match=r"named as roles \(system, user, .*, not \['question'\]"):
        handler.example_from_row({"system": "be brief", "question": "why?"})


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"use_dynamo": True}, UnsupportedError, "use_dynamo=True"),
        ({"start_timeout_secs": 0}, ConfigurationError, "start_timeout_secs must be positive"),
        ({"vllm_server_kwargs": {"port": "8000"}}, ConfigurationError, "'port'"),
        ({"large_modle": True}, ConfigurationError, "large_modle"),
        ({"inference_fn": print}, ConfigurationError, "VLLMChatModelHandler has no argument 'inference_fn'"),
    ],
)
def test_bad_arguments_are_refused_at_construction(options, error, said):
    with pytest.raises(error, match=said):
        VLLMChatModelHandler(MODEL, **options)


def test_missing_vllm_is_named_with_the_extra(monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(MissingExtraError, match=r'vllm is not installed; .*pip install .*"vllm>='):
        VLLMCompletionsModelHandler(MODEL).load_model()


@pytest.mark.parametrize("where", [{"isolate": True, "placement": "process"}, {}], ids=["isolated", "machine"])
def test_handler_predicts_in_every_placement(where, own_runtime):
    with own_runtime() if not where else nullcontext():
        outcomes = list(predict(VLLMCompletionsModelHandler(MODEL), [*PROMPTS, "400"], on_failure="yield", **where))
    assert texts(outcomes[:-1]) == [prompt.upper() for prompt in PROMPTS]
    assert isinstance(outcomes[-1].error, openai.BadRequestError)


@pytest.mark.parametrize("transform", [RunInference, BeamsRunInference])
@pytest.mark.filterwarnings("ignore:.*RunInference:UserWarning")  # a handler of Headrace's in Beam's own transform
def test_handler_runs_in_a_pipeline(transform):
    with beam.Pipeline() as pipeline:
        answers = pipeline | beam.Create(PROMPTS) | transform(CompletionsHere(MODEL)) | beam.Map(text_of)
        assert_that(answers, equal_to([prompt.upper() for prompt in PROMPTS]))


IN_BEAMS = """
import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from headrace.handlers.vllm_inference import VLLMCompletionsModelHandler

def run(*prompts):
    with beam.Pipeline() as pipeline:
        answers = pipeline | beam.Create(prompts) | RunInference(VLLMCompletionsModelHandler("m"))
        answers | beam.Map(lambda result: print("said", result.inference.choices[0].text))

run("once", "upon")
run("400")
"""


def test_server_of_beams_own_transform_lives_in_another_process():
    done = subprocess.run([sys.executable, "-c", IN_BEAMS], capture_output=True, text=True, timeout=100, check=False)
    assert re.findall("said (.*)", done.stdout) == ["ONCE", "UPON"], done.stderr
    assert "VLLMServerError: openai.BadRequestError: Error code: 400 - '400' is refused" in done.stderr
