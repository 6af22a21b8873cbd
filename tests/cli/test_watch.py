"""``--watch``: the page while the run goes on, for those who know its address."""

import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest

from headrace.cli.watch import LivePage
from headrace.core.errors import ConfigurationError
from headrace.metrics.report import report_figures
from headrace.metrics.timeline import Timeline

pytest.importorskip("matplotlib")


def got(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def figures():
    return report_figures({"command": "run", "exit_code": 0, "exit_reason": "running", "predictions": 3}, Timeline())


def test_the_page_is_for_those_who_know_the_token(wait_until):
    before = set(threading.enumerate())
    with LivePage(figures, 0) as page:
        text = got(page.address)
        assert "Until now." in text
        assert '<meta http-equiv="refresh"' in text
        for address in (page.address.partition("?")[0], page.address + "x"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                got(address)
        port = int(page.address.partition("?")[0].rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port}"):
            LivePage(figures, port)
    with pytest.raises(urllib.error.URLError):
        got(page.address)
    assert wait_until(lambda: set(threading.enumerate()) <= before)  # those that have answered end on their own


def test_a_browser_that_leaves_early_is_no_news(capfd):
    with LivePage(figures, 0) as page:
        host, _, rest = page.address.removeprefix("http://").partition("/")
        name, _, port = host.partition(":")
        with socket.create_connection((name, int(port))) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets when it closes
            browser.sendall(f"GET /{rest} HTTP/1.1\r\n\r\n".encode())
        got(page.address)
    assert capfd.readouterr().err == ""


def test_a_port_is_one(folder, mistake):
    folder.write("in.jsonl", [{"a": 1}])
    assert "--watch" in mistake("--watch", "99999")
