"""The Grafana dashboard's queries, asked of a Prometheus that watches a program; needs Debian's package prometheus."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from headrace.metrics import instruments
from http_endpoint import serving
from openai_endpoint import speaking
from ports import new_port
from waiting import wait_until

DASHBOARD = Path(__file__).parents[2] / "examples" / "telemetry" / "grafana.json"
NEEDS = ("gpu", "quota", "throttled", "refreshes")
"""What the program below has none of: a GPU, an endpoint that refuses requests, and newer models."""

PROGRAM = """
import itertools
import os
import sys
import threading

import headrace
from headrace.handlers.openai_inference import OpenAIChatModelHandler


class Square(headrace.ModelHandler):
    def load_model(self):
        return lambda x: x * x

    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            raise ValueError("bad")
        if 14 in batch:
            os._exit(1)
        return [model(x) for x in batch]


class Unsteady(headrace.RemoteModelHandler):
    def create_client(self):
        return []

    async def request(self, batch, model, inference_args=None):
        model.append(batch)
        if len(model) % 5 == 0:
            raise ConnectionError("lost")
        return list(batch)


def all_of(handler, rows, **options):
    for _ in headrace.predict(handler, rows, on_failure="yield", **options):
        pass


def main():
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    budget = headrace.Budget(prices={"m": headrace.Price(input=1.0, output=2.0)})
    for rounds in itertools.count():
        if ended.is_set():
            return
        all_of(Square(max_batch_size=8), range(13))
        all_of(Square(max_batch_size=8), range(15), isolate=True)
        all_of(Unsteady(), range(20))
        chat = OpenAIChatModelHandler("m", url=sys.argv[1], api_key="k")
        all_of(chat, ["a", f"b{rounds}"], budget=budget, cache="c.db")


if __name__ == "__main__":
    main()
"""
CONFIG = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs: [{{job_name: headrace, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


def got(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture
def prometheus(tmp_path):
    """The address of one that watches the program, which works until the test ends."""
    assert shutil.which("prometheus"), "install Debian's package prometheus, or what else has that program"
    ports = new_port(), new_port()
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(port=ports[0]))
    address = f"127.0.0.1:{ports[1]}"
    server = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    environment = os.environ | {"HEADRACE_PROMETHEUS": f"127.0.0.1:{ports[0]}"}
    with serving(speaking()) as endpoint, open(tmp_path / "log", "w") as log:
        program = subprocess.Popen(
            [sys.executable, "program.py", endpoint.url], cwd=tmp_path, env=environment, stdin=subprocess.PIPE
        )
        watching = subprocess.Popen(server, cwd=tmp_path, stdout=log, stderr=log)
        try:
            yield f"http://{address}/api/v1"
        finally:
            program.stdin.close()
            code = program.wait(timeout=120)
            watching.terminate()
            watching.wait(timeout=60)
    assert code == 0


def queries():
    """The panels' titles, and their queries as Grafana sends them."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "30s").replace("$job", ".*")


def values(prometheus, query):
    """The finite values that a query finds now."""
    found = got(f"{prometheus}/query?{urllib.parse.urlencode({'query': query})}")
    assert found["status"] == "success", query
    return [value for one in found["data"]["result"] if math.isfinite(value := float(one["value"][1]))]


def is_up(prometheus):
    try:
        return values(prometheus, "up{job='headrace'}") == [1]
    except OSError:
        return False


def test_every_query_of_the_dashboard_finds_something(prometheus):
    assert wait_until(lambda: is_up(prometheus), 120)
    asked = list(queries())
    assert len(asked) > 20
    missing = [one for one in asked if not any(name in one[1] for name in NEEDS)]

    def all_found():
        missing[:] = [(title, query) for title, query in missing if not values(prometheus, query)]
        return not missing

    assert wait_until(all_found, 180), missing
    for _, query in asked:
        values(prometheus, query)
    labels = got(f"{prometheus}/label/job/values?match[]=headrace_examples_total")
    assert labels["data"] == ["headrace"]


def test_the_dashboard_shows_what_there_is():
    """Each name in it is one of an instrument's, as Prometheus has them."""
    found = [one for one in vars(instruments).values() if isinstance(one, instruments.Instrument)]
    known = {one.name.replace(".", "_") for one in [*found, *instruments.GAUGES.values()]}
    named = {name for _, query in queries() for name in re.findall(r"\b(?:headrace|gen_ai)_\w+(?=\{)", query)}
    endings = r"(_per_second|_seconds|_bytes)?(_total|_bucket|_sum|_count)?$"
    assert {re.sub(endings, "", name) for name in named} <= known
