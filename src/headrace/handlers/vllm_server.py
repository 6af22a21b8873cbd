"""A vLLM server as a child process: starting, probing and ending it, and passing on its output."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.engine import predict_each
from headrace.core.errors import ConfigurationError, HeadraceError, MissingExtraError, as_type_name
from headrace.core.event_loop import result_of
from headrace.handlers.generation import EngineLostError, Restarted

_LOGGER = logging.getLogger("headrace.vllm")

_GUARD = Path(__file__).with_name("vllm_guard.py")
_HOST = "127.0.0.1"
_LOOPBACK = {_HOST, "localhost"}
_CHOSEN_HERE = {"model", "port", "uds", "ssl-keyfile", "ssl-certfile"}
_LAST_LINES = 30
_STOP_SECS = 15.0
"""Longer than the guard takes to end the server."""
_SHORTEST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.05, 1.0
_PROBE_SECS = 10.0
_REFUSED, _NO_ANSWER = 0, -1
"""In place of an HTTP status."""


class VLLMServerError(HeadraceError, EngineLostError):
    """A vLLM server does not start, or died over a request."""

    retryable = False


class Launch(NamedTuple):
    """How to start a server."""

    model: str
    arguments: tuple[str, ...]
    """Those besides the model and the address."""
    api_key: str | None
    """None: a random one."""
    timeout_secs: float


def server_arguments(kwargs: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """A server's command line, without the API key, and that: ``{"enforce-eager": None}`` is ``--enforce-eager``.

    Of the values by option, None and True stand for an option without a value, a list for several, a mapping for JSON.
    """
    found: list[str] = []
    api_key: str | None = None
    for name, value in kwargs.items():
        option = name.replace("_", "-")
        if option in _CHOSEN_HERE or (option == "host" and value not in _LOOPBACK):
            raise ConfigurationError(
                f"vllm_server_kwargs must not have {name!r}: the server is for this process alone, on a free port."
            )
        if value is False:
            raise ConfigurationError(
                f"vllm_server_kwargs has {name!r}: False; leave it out, or write 'no-{option}': None if that is an "
                "option of vLLM."
            )
        values = list(value) if isinstance(value, list | tuple) else [] if value is None or value is True else [value]
        words = [json.dumps(one) if isinstance(one, Mapping) else str(one) for one in values]
        if option == "api-key":
            api_key = words[0] if words else None
        elif option != "host":
            found += [f"--{option}", *words]
    return tuple(found), api_key


class ServerProcess:
    """One run of a server, from its start until it ends; VLLMServerError if it does not come to answer."""

    def __init__(self, launch: Launch) -> None:
        self._model = launch.model
        self.api_key = launch.api_key or secrets.token_hex(16)
        self._owner = os.getpid()
        self._probing = threading.Lock()
        self.client: Any = None
        """For whoever asks it."""
        self._reserved, self.port = _reserved_port()
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(self._owner)]
        server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", launch.model, "--host", _HOST]
        environment = {**os.environ, "VLLM_API_KEY": self.api_key}  # a command line is visible to everybody
        self._guard = subprocess.Popen(  # noqa: S603 - this Python, and what the user has given the handler
            [*guard, *server, "--port", str(self.port), *launch.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            env=environment,
            start_new_session=True,
        )
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        args = (self._guard.stdout, self._lines)
        self._reader = threading.Thread(target=_pass_on, args=args, name="headrace output of vLLM", daemon=True)
        self._reader.start()
        try:
            self.served = self._until_it_serves(launch.timeout_secs)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"http://{_HOST}:{self.port}/v1"

    @property
    def ending(self) -> str | None:
        """How the server ended; None: it is running."""
        code = self._guard.poll()
        if code is None:
            return None
        number = -code if code < 0 else code - 128  # the signal that killed the guard, or, as it reports, the server
        if number in set(signal.Signals):
            return f"was killed by {signal.Signals(number).name}"
        return f"ended itself with exit code {code}"

    def error(self, what: str) -> VLLMServerError:
        """The error that the server did ``what``, with the last lines of its output."""
        if self.ending:
            self._reader.join(1.0)  # until it has read everything
        lines = "; its last lines:" if self._lines else "."
        return VLLMServerError("\n".join([f"the vLLM server of {self._model} {what}{lines}", *self._lines]))

    def obituary(self) -> str | None:
        """How the server ended, with the last lines of its output; None: it is running."""
        return str(self.error(self.ending)) if self.ending else None

    def is_dead(self) -> bool:
        """Whether the server has ended; ends one that refuses connections or reports a dead engine."""
        with self._probing:
            if self.ending:
                return True
            if self._get("/health")[0] not in (_REFUSED, http.client.SERVICE_UNAVAILABLE):
                return False
            self.stop()
            return True

    def stop(self) -> None:
        """Ends the server and everything that it started; returns when nothing is left."""
        if os.getpid() != self._owner:  # this is a fork of its owner
            return
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the guard has ended, or was already told
            self._guard.stdin.write(".")
            self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(_STOP_SECS)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # in case the guard was killed, or hangs
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        if threading.current_thread() is not self._reader:  # which a garbage collection may have led here
            self._reader.join(1.0)
        self._reserved.close()

    def _until_it_serves(self, timeout_secs: float) -> list[str]:
        """Waits; returns the names of the served models."""
        deadline, pause = time.monotonic() + timeout_secs, _SHORTEST_PAUSE_SECS
        while not self.ending:
            status, body = self._get("/v1/models")
            served = [model["id"] for model in json.loads(body)["data"]] if status == http.client.OK else []
            if served:
                return served
            if time.monotonic() > deadline:
                raise self.error(f"did not answer within {timeout_secs:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECS)
        error = self.error(f"{self.ending} before it answered")
        if "No module named 'vllm'" in str(error):
            raise MissingExtraError("vllm", "vllm") from error
        raise error

    def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a response; ignores any proxy in the environment."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_PROBE_SECS)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.api_key}"})
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError:
            return _NO_ANSWER, b""
        except (OSError, http.client.HTTPException):
            return _REFUSED, b""
        finally:
            connection.close()


class Server(Restarted[ServerProcess]):
    """A model's server, which is restarted if it ends."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(partial(ServerProcess, launch), ServerProcess.obituary, ServerProcess.stop)

    def answers_to(self, handler: Any, batch: Sequence[Any], inference_args: dict[str, Any] | None) -> list[Any]:
        """The handler's predictions for a batch, for a proxy elsewhere; errors travel as VLLMServerError."""
        try:
            predictions: list[Any] = result_of(predict_each(handler, batch, self, inference_args))
        except Exception as error:
            raise VLLMServerError(f"{as_type_name(error)}: {error}") from None
        return predictions


def _reserved_port() -> tuple[socket.socket, int]:
    """A socket that reserves a free port, and the port.

    While it is bound, the system does not choose the port again. Since it does not listen, the server can: both set
    SO_REUSEADDR.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((_HOST, 0))
    return reserved, reserved.getsockname()[1]


def _pass_on(output: Any, lines: deque[str]) -> None:
    with output:
        for line in output:
            lines.append(line.rstrip())
            _LOGGER.info("%s", line.rstrip())
