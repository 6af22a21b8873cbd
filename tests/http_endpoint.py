"""An HTTP server on localhost that predicts, refuses, hangs or breaks, as a test says; and handlers that ask it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import cloudpickle

from headrace import Failure, RemoteModelHandler
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from ports import new_port
from toys import Events, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEY = "sk-of-the-environment"
"""Of a provider; in the environment where a test says so."""


class Answer(NamedTuple):
    status: int = 200
    body: Any = None
    """Sent as JSON; bytes as they are. None: each example, doubled."""
    headers: dict[str, str] = {}
    delay: float = 0.0
    """Seconds before the first byte."""
    cut: bool = False
    """The connection ends without an answer."""
    pause: float = 0.0
    """Seconds in the middle of the body."""
    cut_body: bool = False
    """The connection ends in the middle of the body."""


class FaultServer(ThreadingHTTPServer):
    """Answers a POST with JSON, such as a list of examples.

    Args:
        answer: from (examples, how many requests came before) to an Answer; of a GET, the examples are None.
        address: where to listen; None: on a port of 127.0.0.1.
        tls: a context, for HTTPS.
        handler: what reads requests.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer, address=None, tls=None, handler=None):
        super().__init__(address or ("127.0.0.1", new_port()), handler or _Handler)
        if tls is not None:  # a handshake that fails is the thread's that answers
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.scheme = "http" if tls is None else "https"
        self.answer = answer
        self.requests = []
        self.headers = []
        self.paths = []
        self.lock = threading.RLock()
        self.hang_up = threading.Event()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_port}/"

    def handle_error(self, request, client_address):
        """Clients that go away are no news."""


class Replying(BaseHTTPRequestHandler):
    """Sends Answers, which a subclass gives."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.reply(self.answer(b""))

    def do_POST(self):
        self.reply(self.answer(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, data):
        """The Answer to a request with these bytes."""
        raise NotImplementedError

    def reply(self, answer):
        server: Any = self.server
        if answer.delay and server.hang_up.wait(answer.delay):
            return
        if answer.cut:
            self.close_connection = True
            return
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):
            self._write(body, answer)

    def _write(self, body, answer):
        server: Any = self.server
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        if answer.cut_body or (answer.pause and server.hang_up.wait(answer.pause)):
            self.close_connection = True
            return
        self.wfile.write(body[middle:])

    def log_message(self, *_):
        pass


class _Handler(Replying):
    def answer(self, data):
        server: Any = self.server
        examples = json.loads(data) if self.command == "POST" else None
        with server.lock:
            before = len(server.requests)
            server.requests.append(examples)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.paths.append(self.path)
        answer = server.answer(examples, before)
        is_plain = answer.body is None and not answer.cut
        return answer._replace(body=[2 * one for one in examples]) if is_plain else answer


@contextmanager
def running(server):
    """Has a server answer, on a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(answer=lambda examples, before: Answer(), address=None, tls=None):
    with running(FaultServer(answer, address, tls)) as server:
        try:
            yield server
        finally:
            server.hang_up.set()


class StatusError(Exception):
    """As clients raise it."""

    def __init__(self, status_code, headers):
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.headers = headers


class Remote(RemoteModelHandler):
    """Asks the server with urllib, on threads.

    Args:
        url: of the server.
        size: examples in a request.
        options: of ``RemoteModelHandler``.
    """

    def __init__(self, url, size=1, **options):
        super().__init__(**{"num_retries": 2, **options})
        self.url = url
        self.size = size

    def create_client(self):
        return self.url

    def request(self, batch, model, inference_args=None):
        data = json.dumps([one + (inference_args or {}).get("plus", 0) for one in batch]).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(model, data, method="POST")) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                raise StatusError(error.code, dict(error.headers)) from None

    def batch_elements_kwargs(self):
        return {"min_batch_size": self.size, "max_batch_size": self.size}


class AsyncClient:
    """Sends each request over a connection of its own."""

    def __init__(self, host, port):
        self.address = host, port
        self.loop = asyncio.get_running_loop()
        self.closed = False

    async def post(self, body):
        assert self.loop is asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            data = json.dumps(body).encode()
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().strip().splitlines()
            headers = dict(line.split(": ", 1) for line in headers)
            answer = await reader.readexactly(int(headers["Content-Length"]))
        finally:
            writer.close()
        if int(status.split()[1]) != 200:
            raise StatusError(int(status.split()[1]), headers)
        return json.loads(answer)

    async def aclose(self):
        self.closed = True


class AsyncRemote(Remote):
    """Asks the server in the event loop."""

    async def create_client(self):
        return AsyncClient("127.0.0.1", int(self.url.rpartition(":")[2].strip("/")))

    async def request(self, batch, model, inference_args=None):
        return await model.post([one + (inference_args or {}).get("plus", 0) for one in batch])


def once(answer, then=None):
    """The first request gets this answer, all others another one."""
    return lambda examples, before: (then or Answer()) if before else answer


def for_first(count, answer):
    """The first requests get this answer."""
    return lambda examples, before: answer if before < count else Answer()


def for_example(example, answer):
    """Requests with this example get this answer."""
    return lambda examples, before: answer if example in examples else Answer()


def events_and_outcomes(handler, elements, **options):
    """What a bundle reports and returns; failures are caught."""
    events = Events()
    worker = open_worker(catching(prepare(handler, InferenceRequest(**options)), Exception))
    try:
        return events, run(worker, elements, events)
    finally:
        worker.close()


def failures_among(outcomes):
    return [one for one in outcomes if isinstance(one, Failure)]
