"""What a program's models do is exported where its environment, or the program, asks for it, and only there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace import ConfigurationError, predict
from headrace.core.errors import MissingExtraError
from headrace.core.events import WANTED
from otlp_collector import collecting
from toys import Acting

PROGRAM = """
import sys
import threading

import headrace
from headrace.runtime.observers import subscribed


class Square(headrace.ModelHandler):
    def load_model(self):
        return lambda x: x * x

    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            raise ValueError("the text of a row")
        return [model(x) for x in batch]


class Chat(headrace.RemoteModelHandler):
    gen_ai = ("chat", "openai")
    model_name = "gpt"

    def create_client(self):
        self.fails = [TimeoutError("the text of a row")]

    async def request(self, batch, model, inference_args=None):
        headrace.report_usage("gpt", input_tokens=7, output_tokens=3)
        if 2 in batch and not getattr(type(self), "failed", False):
            type(self).failed = True
            raise ConnectionError("the text of a row")
        return list(batch)


class Plain(Chat):
    gen_ai = ("", "")

    async def request(self, batch, model, inference_args=None):
        return list(batch)


def main():
"""


def ran(tmp_path, code, **environment):
    """Runs lines of a program, with these variables; returns what it has printed."""
    path = tmp_path / "program.py"
    lines = "".join(f"    {line}\n" for line in code)
    path.write_text(f"{PROGRAM}{lines}\nif __name__ == '__main__':\n    main()\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, path], env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


PREDICT = [
    "failures = [x for x in headrace.predict(Square(max_batch_size=4), range(20), on_failure='yield')",
    "            if isinstance(x, headrace.Failure)]",
    "print(len(failures))",
]


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """What a collector gets of a program that runs a model here, in a host, and at endpoints."""
    code = [
        "seen = threading.Event()",
        "Sees = type('', (), {'on_event': lambda self, event: getattr(event, 'phases', None) and seen.set()})",
        "class Seen(Square):",
        "    load_model = lambda self: seen.wait(60) and Square.load_model(self)",
        "with subscribed(Sees()):",
        *(f"    {line.replace('Square', 'Seen')}" for line in PREDICT),
        "print(list(headrace.predict(Square(max_batch_size=4), range(3), isolate=True)))",
        "print(list(headrace.predict(Chat(max_batch_size=1), range(3))))",
        "print(list(headrace.predict(Plain(max_batch_size=1), range(2))))",
    ]
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_SAMPLER": "always_on"}
        out = ran(tmp_path_factory.mktemp("program"), code, **variables)
    assert out == "1\n[0, 1, 4]\n[0, 1, 2]\n[0, 1]\n"
    return collector


def test_figures_add_up(collected):
    assert collected.total("headrace.examples") == 19 + 3 + 3 + 2
    assert collected.total("headrace.batch.size") == 19 + 3 + 3 + 2
    assert collected.total("headrace.element.failures", headrace__stage="inference", error__type="ValueError") == 1
    assert 0 < collected.total("headrace.phase.time") <= 10 * collected.total("headrace.sampled.time")
    assert collected.services == {"headrace"}
    assert len(collected.received) > 1000
    assert b"the text of a row" not in collected.received
    assert len(collected.instances("headrace.examples")) == 1, "a host is heard through its owner"


def test_requests_to_generative_models_have_the_names_of_the_conventions(collected):
    request = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": "openai", "gen_ai__request__model": "gpt"}
    assert collected.total("gen_ai.client.token.usage", **request, gen_ai__token__type="input") == 4 * 7
    assert collected.total("gen_ai.client.token.usage", **request, gen_ai__token__type="output") == 4 * 3
    assert collected.total("gen_ai.client.operation.duration", **request) > 0
    assert collected.total("gen_ai.client.operation.duration", **request, error__type="ConnectionError") > 0
    assert collected.total("headrace.request.duration") > 0


def test_batches_have_spans_with_what_belongs_to_them(collected):
    trees = collected.trees()
    assert {name for name, _ in trees} == {"headrace.batch"}
    children = [tuple(names) for _, names in trees]
    assert children.count(("headrace.load",)) == 1
    assert sum("headrace.host" in names for names in children) == children.count(("headrace.host",)) + 1 > 1
    assert any(names.count("chat gpt") == 2 for names in children), "both tries belong to their batch"
    assert sum("headrace.request" in names for names in children) == 2
    by_id = {span.span_id: span for span in collected.spans}
    for span in collected.spans:
        parent = by_id.get(span.parent_span_id)
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if parent is not None and span.name != "headrace.load":
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_what_is_not_asked_for_is_not_even_imported(tmp_path):
    code = [
        "import os",
        "for variables in (",
        "    {'OTEL_SDK_DISABLED': 'true', 'OTEL_METRICS_EXPORTER': 'console'},",
        "    {'OTEL_SDK_DISABLED': '', 'OTEL_METRICS_EXPORTER': 'none', 'OTEL_TRACES_EXPORTER': 'none'},",
        "    {'OTEL_METRICS_EXPORTER': '', 'OTEL_TRACES_EXPORTER': '', 'OTEL_SERVICE_NAME': 'mine'},",
        "):",
        "    os.environ.update(variables)",
        *(f"    {line}" for line in PREDICT),
        "print([m for m in sys.modules if m.partition('.')[0] in ('opentelemetry', 'prometheus_client')])",
    ]
    assert ran(tmp_path, code) == "1\n1\n1\n[]\n"


def test_ten_batches_a_second_have_spans_unless_a_sampler_is_named(tmp_path):
    """Also where nothing but spans is asked for."""
    code = ["print(sum(headrace.predict(Square(max_batch_size=1, min_batch_size=1), [1] * 2000)))"]
    with collecting() as collector:
        out = ran(tmp_path, code, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_METRICS_EXPORTER="none")
    assert out == "2000\n"
    assert 1 <= len(collector.trees()) < 1000
    assert not collector.points


def test_metrics_alone_are_exported_with_the_names_that_the_variables_give(tmp_path):
    with collecting() as collector:
        endpoint, attributes = f"{collector.url}/v1/metrics", "service.instance.id=i7,service.name=mine"
        ran(tmp_path, PREDICT, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=endpoint, OTEL_RESOURCE_ATTRIBUTES=attributes)
    assert collector.services == {"mine"}
    assert collector.instances("headrace.examples") == {"i7"}
    assert not collector.spans


def test_a_collector_that_is_away_costs_no_row(tmp_path, closed_port):
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{closed_port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    assert ran(tmp_path, PREDICT, **variables).startswith("1\n")


def test_a_program_that_leaves_predictions_unread_ends_with_its_figures_although_a_forked_child_ends_them(tmp_path):
    code = [
        "global results",
        "results = headrace.predict(Square(max_batch_size=1), range(9))",
        "print(next(results), flush=True)",
        "import os",
        "if child := os.fork():",
        "    os.waitpid(child, 0)",
        "else:",
        "    results.close()",
    ]
    figures = tmp_path / "figures.prom"
    assert ran(tmp_path, code, HEADRACE_PROMETHEUS=str(figures)) == "0\n"
    assert "headrace_sampled_time_seconds_total" in figures.read_text()


def test_what_cannot_be_exported_is_one_error(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")  # which is set otherwise, and stays
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "carrier-pigeon")
    with pytest.raises(ConfigurationError, match=r"set up as the variables OTEL_\.\.\. say: .*carrier-pigeon"):
        list(predict(Acting(), [1]))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(MissingExtraError, match=r"the extra 'otel' with: pip install .*-exporter-otlp-proto-http"):
        list(predict(Acting(), [1]))
    assert not WANTED
