"""``--watch``: the page of a run while it runs, for a browser on this machine."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.core.errors import ConfigurationError
from headrace.metrics.report import render

_KEPT_SECS = 2.0
"""How long a page is shown to all: drawing one takes the run a few tenths of a second."""


class LivePage:
    """Serves the page on 127.0.0.1, to those who know the token in its address; a context.

    Args:
        figures: returns those of now.
        port: to listen on; 0: any that is free.

    Raises:
        ConfigurationError: the port is taken, or the extra ``report`` is not installed.
    """

    def __init__(self, figures: Callable[[], dict[str, Any]], port: int) -> None:
        token = secrets.token_urlsafe(16)
        drawing = threading.Lock()
        drawn = lru_cache(maxsize=1)(lambda _: render(figures()).encode())

        def page() -> bytes:
            with drawing:
                return drawn(time.monotonic() // _KEPT_SECS)

        page()  # a missing extra is found now
        try:
            self._server = _PageServer(("127.0.0.1", port), _handler(page, token))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "ports are 0 to 65535"
            raise ConfigurationError(f"--watch: cannot listen on port {port}: {reason}.") from error
        self.address = f"http://127.0.0.1:{self._server.server_port}/?token={token}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-watch", daemon=True)

    def __enter__(self) -> LivePage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _PageServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing about a browser that left early: standard error is the run's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(page: Callable[[], bytes], token: str) -> type[BaseHTTPRequestHandler]:
    class _PageRequest(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
            is_known = secrets.compare_digest(given.encode(), token.encode())
            content = page() if is_known else b"The address needs the token that the run has printed."
            self.send_response(200 if is_known else 403)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing: standard error is the run's."""

    return _PageRequest
