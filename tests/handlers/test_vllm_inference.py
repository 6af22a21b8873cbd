"""Language models in a server of their own: asked with OpenAI's client, over HTTP, of a stand-in for vLLM's server.

The stand-in is started by the handler's own command, as a process of its own. A server is up when it answers, says why
if it does not start, and ends with the process that started it.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest
from apache_beam.ml.inference import vllm_inference as incumbent

from beam_compat import assert_accepts
from headrace import ConfigurationError, Failure, MissingExtraError, RetryConfig, UnsupportedError, predict
from headrace.handlers import vllm_server
from headrace.handlers.vllm_inference import (
    OpenAIChatMessage,
    VLLMChatModelHandler,
    VLLMCompletionsModelHandler,
    _VLLMModelServer,
)
from headrace.handlers.vllm_server import Launch, Server, VLLMServerError, server_arguments
from headrace.testing import HandlerContract
from toys import infer
from waiting import wait_until

pytestmark = [pytest.mark.large, pytest.mark.usefixtures("stand_in_vllm")]

MODEL = "someone/some-model"
PROMPTS = ["once upon", "a time", "there was", "a wheel"]
CHATS = [[OpenAIChatMessage("system", "be brief"), OpenAIChatMessage("user", prompt)] for prompt in PROMPTS]
AT_ONCE = {"min_batch_size": 16, "max_batch_size": 16}
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


def here(handler, prompts):
    """The texts, and what failed, in the order of the prompts."""
    outcomes = predict(handler, prompts, placement="process", retry=RetryConfig(attempts=2), on_failure="yield")
    return [outcome if isinstance(outcome, Failure) else text_of(outcome) for outcome in outcomes]


class Local(VLLMCompletionsModelHandler):
    """Loads as an example of Beam's does, whose model is first copied to a local folder."""

    def load_model(self):
        assert self._model_name == "gs://some/model"
        return _VLLMModelServer("/a/local/model", self._vllm_server_kwargs)


class Renamed(VLLMCompletionsModelHandler):
    """Sets what the server is started with, as handlers do that fetch the model first."""

    def load_model(self):
        self._model_name = "/a/local/model"
        self._vllm_server_kwargs = {"served-model-name": "short"}
        return super().load_model()


def test_derived_handlers_make_beams_server_class_and_set_its_attributes():
    handler = Local("gs://some/model", {"served-model-name": "gs://some/model"})
    assert texts(infer(handler, ["once"])) == ["ONCE"]
    (result,) = infer(Renamed("placeholder", {"max-num-seqs": 8}), ["once"])
    assert (result.inference.model, result.model_id) == ("short", "/a/local/model")
    handler = VLLMCompletionsModelHandler(MODEL)
    handler._use_dynamo = True
    with pytest.raises(UnsupportedError, match="use_dynamo=True"):
        handler.load_model()


def test_handlers_take_beams_arguments():
    assert_accepts(VLLMCompletionsModelHandler, incumbent.VLLMCompletionsModelHandler, "model_name")
    assert_accepts(VLLMChatModelHandler, incumbent.VLLMChatModelHandler, "model_name")


def test_predictions_are_the_clients_own_objects():
    (completion,) = infer(CompletionsHere(MODEL), ["a wheel"])
    assert (completion.example, completion.model_id) == ("a wheel", MODEL)
    assert isinstance(completion.inference, openai.types.Completion)
    (chat,) = infer(ChatHere(MODEL), CHATS[:1])
    assert isinstance(chat.inference, openai.types.chat.ChatCompletion)
    assert chat.inference.choices[0].message.content == "SYSTEM:BE BRIEF USER:ONCE UPON"


def test_prompts_of_a_batch_are_sent_concurrently_and_past_proxies(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    results = infer(VLLMCompletionsModelHandler(MODEL), ["beside 15"] * 16)
    assert max(result.inference.usage.prompt_tokens for result in results) == 16  # of so many the server has known


def test_bad_prompt_fails_alone_and_no_good_one_is_sent_twice(log):
    prompts = [*PROMPTS, "400", *PROMPTS]
    handler = VLLMCompletionsModelHandler(MODEL, {"log": str(log)}, **AT_ONCE)
    *first, failure, a, b, c, d = here(handler, prompts)
    assert [*first, a, b, c, d] == [prompt.upper() for prompt in PROMPTS * 2]
    assert isinstance(failure.error, openai.BadRequestError)
    asked = Counter(log.read_text().splitlines())
    assert asked.pop("400") == 1
    assert asked == dict.fromkeys(PROMPTS, 2)


@pytest.mark.parametrize("what", ["die", "engine dies"])
def test_server_that_dies_or_whose_engine_does_is_replaced_and_the_batch_repeated(what, tmp_path, starts, caplog):
    prompts = [*PROMPTS, f"{what} once {tmp_path / 'died'}"]
    assert here(VLLMCompletionsModelHandler(MODEL, **AT_ONCE), prompts) == [prompt.upper() for prompt in prompts]
    assert starts() == 2
    if what == "die":
        assert "the vLLM server of someone/some-model was killed by SIGKILL; its last lines:" in caplog.text
        assert "the engine is on fire; another one is started" in caplog.text


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


def test_bad_arguments_are_refused_at_construction():
    for said, options in {
        "start_timeout_secs must be positive": {"start_timeout_secs": 0},
        "'port'": {"vllm_server_kwargs": {"port": "8000"}},
        "large_modle": {"large_modle": True},
        "VLLMChatModelHandler has no argument 'inference_fn'": {"inference_fn": print},
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            VLLMChatModelHandler(MODEL, **options)
    with pytest.raises(UnsupportedError, match="use_dynamo=True"):
        VLLMChatModelHandler(MODEL, use_dynamo=True)


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


OWNER = """
import sys, threading
from headrace.handlers.vllm_server import Launch, Server
threading.Thread(target=threading.Event().wait, daemon=True).start()
server = Server(Launch("m", tuple(sys.argv[1:]), None, 60.0))
print(server.running().port, flush=True)
threading.Event().wait()
"""


def launch(*arguments, api_key=None):
    return Launch("m", arguments, api_key, 60.0)


def program(number):
    words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
    return "guard" if words[3].endswith("vllm_guard.py") else "server" if "--port" in words else "engine"


def test_server_ends_with_its_object(processes):
    before = set(threading.enumerate())
    server = Server(launch("--stubborn-engine"))
    assert len(processes()) == 3  # guard, server, engine
    (reader,) = (one for one in set(threading.enumerate()) - before if "vLLM" in one.name)
    del server
    assert processes() == []
    assert not reader.is_alive()


@pytest.mark.parametrize("arguments", [(), ("--stubborn-engine", "--never-answer")], ids=["answering", "starting"])
def test_server_ends_with_a_killed_owner(processes, popen, arguments):
    with popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE) as owner:
        if arguments:
            assert wait_until(lambda: len(processes()) == 4)
        else:
            assert int(owner.stdout.readline()) > 0
        owner.kill()
    assert wait_until(lambda: processes() == []), processes()


@pytest.mark.parametrize(
    ("what", "number"), [("server", signal.SIGKILL), ("server", signal.SIGSEGV), ("guard", signal.SIGKILL)]
)
def test_what_is_killed_leaves_nothing_and_is_replaced(processes, what, number):
    arguments = ["--stubborn-engine"] if what == "server" else []  # nobody else ends an engine of that sort
    server = Server(launch(*arguments, api_key="one"))
    first = server.running()
    assert first.api_key == "one"
    assert not any("one" in Path(f"/proc/{process}/cmdline").read_text().split("\0") for process in processes())
    (process,) = (process for process in processes() if program(process) == what)
    os.kill(process, number)
    assert wait_until(lambda: first.ending) == f"was killed by {number.name}"
    assert wait_until(lambda: processes() == [])
    assert server.running() is not first
    assert len(processes()) == 3


def test_server_that_does_not_start_reports_its_last_lines(processes, caplog, monkeypatch):
    crashed = "ended itself with exit code 3 before it answered; its last lines(.|\n)*CUDA"
    with pytest.raises(VLLMServerError, match=crashed):
        Server(launch("--crash-at-start", "3"))
    caplog.clear()
    caplog.set_level("INFO", "headrace.vllm")
    clock = SimpleNamespace(monotonic=lambda: 100.0 if "loading m" in caplog.text else 0.0)
    monkeypatch.setattr(vllm_server, "time", clock)
    with pytest.raises(VLLMServerError, match=r"did not answer within 60 s; its last lines:\nloading m"):
        Server(launch("--never-answer"))
    assert processes() == []


def test_server_arguments_become_command_line_options():
    kwargs = {"tensor_parallel_size": 2, "enforce-eager": None, "enable-x": True, "rope": {"a": 1}, "names": ["x", "y"]}
    expected = ["--tensor-parallel-size", "2", "--enforce-eager", "--enable-x", "--rope", '{"a": 1}']
    assert server_arguments({**kwargs, "host": "127.0.0.1"}) == ((*expected, "--names", "x", "y"), None)
    assert server_arguments({"api_key": ["one", "two"]}) == ((), "one")


@pytest.mark.parametrize("kwargs", [{"port": 1}, {"model": "m"}, {"uds": "/x"}, {"host": "0.0.0.0"}, {"x": False}])
def test_reserved_server_arguments_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match="vllm_server_kwargs"):
        server_arguments(kwargs)
