"""API keys: where they come from, and how they are kept out of what others read."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from headrace.core.errors import ConfigurationError, causes, level_of_the_user
from headrace.core.transferable import with_parts

KeySource = str | Callable[[], str] | None
"""What a handler takes for its API key: the key, a function that returns it, or None: the environment has it."""
SECRET_ARGUMENTS = frozenset({"access_token", "api_key", "auth_token", "password", "secret"})
"""Arguments of handlers whose values nobody else may read."""

MASK = "***"
_SHORTEST_MASKED = 8
"""Characters; a shorter key is none, and may stand in any text."""
_KEPT_SECS = 60.0
_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")


class ApiKey:
    """A handler's API key, which its repr does not show.

    A key that is given as text is in the pickle of the handler, and so in that of the pipeline: a warning says so. A
    function is called where the key is needed, at most once a minute, so that keys may expire. With None the
    environment ``variable`` is read there. ``caller`` is the handler's class, for errors.
    """

    _noted_keys: tuple[str, ...] = ()
    _latest = ""
    _called_at = -float("inf")

    def __init__(self, given: KeySource, variable: str, caller: str) -> None:
        self._given = given
        self._variable = variable
        self._who = caller
        if isinstance(given, str):
            self._checked(given)
            warnings.warn(
                f"{caller}: the API key is in the pickle of the pipeline, for all to read who can read that. Leave "
                f"api_key out and set {variable} in the workers' environment, or give a function that returns it.",
                UserWarning,
                stacklevel=level_of_the_user(),
            )
        elif given is not None and not callable(given):
            raise ConfigurationError(
                f"{caller}: api_key must be a text, or a function that returns one, not a {type(given).__qualname__}."
            )

    @property
    def given(self) -> KeySource:
        """What the handler was given."""
        return self._given

    def value(self) -> str | None:
        """The key; None if none was given and the environment variable is not set. Raises what the function does."""
        if callable(self._given):
            if time.monotonic() - self._called_at >= _KEPT_SECS:
                self._latest = self._noted(self._checked(self._given()))
                self._called_at = time.monotonic()
            return self._latest
        key = self._given if self._given is not None else os.environ.get(self._variable) or None
        return None if key is None else self._noted(self._checked(key))

    def required(self) -> str:
        """The key; raises a ConfigurationError that says how to give one if there is none."""
        key = self.value()
        if key is None:
            raise ConfigurationError(
                f"{self._who} has no API key: set {self._variable} in the environment of the workers, or give "
                "api_key=, a function that returns it."
            )
        return key

    def mask(self, text: str) -> str:
        """The text without the key."""
        for key in self._known():
            text = text.replace(key, MASK)
        return text

    def mask_error(self, error: BaseException) -> None:
        """Takes the key out of an error and those that led to it: their texts, and the headers of their requests."""
        for link in causes(error, suppressed=True):
            headers: Any = getattr(getattr(link, "request", None), "headers", None) or ()
            for name in _HEADERS:
                with suppress(Exception):
                    if name in headers:
                        headers[name] = MASK
            with suppress(Exception):  # some errors have attributes that cannot be set
                link.args = tuple(self._masked(one) for one in link.args)
            for name, value in list(getattr(link, "__dict__", {}).items()):
                with suppress(Exception):
                    masked = self._masked(value)
                    if masked is not value:
                        setattr(link, name, masked)

    def __repr__(self) -> str:
        if self._given is None:
            return f"<ApiKey: {self._variable} of the environment>"
        return f"<ApiKey: {MASK}>" if isinstance(self._given, str) else f"<ApiKey: of {self._given!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_variable": self._variable, "_who": self._who}

    def _known(self) -> tuple[str, ...]:
        if not self._noted_keys:  # a copy of this object may be what the client was made with
            with suppress(Exception):
                self.value()
        return self._noted_keys

    def _checked(self, key: Any) -> str:
        if not isinstance(key, str):
            raise ConfigurationError(f"{self._who}: the API key is a {type(key).__qualname__}, and must be a text.")
        text = key.strip()
        if not text:
            raise ConfigurationError(f"{self._who}: the API key is empty; leave api_key out to read {self._variable}.")
        if not (text.isascii() and text.isprintable()) or " " in text:
            raise ConfigurationError(f"{self._who}: the API key has characters in it that no key has, such as blanks.")
        return text

    def _noted(self, key: str) -> str:
        """Remembers a key, to mask it; the one before, too, since a request may still have it."""
        if len(key) >= _SHORTEST_MASKED and key not in self._noted_keys:
            self._noted_keys = (*self._noted_keys, key)[-2:]
        return key

    def _masked(self, value: Any) -> Any:
        """The value itself if the key is not in it."""
        if isinstance(value, Mapping) and type(value) is not dict:  # a client's class of headers
            masked = with_parts(parts := dict(value), self._masked)
            return value if masked is parts else masked
        return self.mask(value) if isinstance(value, str) else with_parts(value, self._masked)
