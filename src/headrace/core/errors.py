"""What can go wrong, as one tree.

::

    HeadraceError
    ├── ConfigurationError (ValueError)       a bad argument, found at construction
    │   ├── UnsupportedError                  asked for something that this version cannot do
    │   └── MissingExtraError (ModuleNotFoundError)  a framework is not installed; names the extra
    ├── PredictionCountError (ValueError)     a handler answered with anything but a prediction for each example
    ├── UnknownKeyError (KeyError)            a key that no KeyModelMapping names
    ├── ModelMemoryError (MemoryError)        the machine has no room for a model
    ├── DeviceLostError (RuntimeError)        no call on a device can succeed any more in this process
    ├── EndpointError (RuntimeError)          a remote endpoint accepts no request: a wrong key, URL or model
    ├── EndpointAnswerError (RuntimeError)    a remote endpoint answered with an error, or with nothing that can be read
    ├── FallbackError (RuntimeError)          a model and its fallback both failed
    ├── BudgetError (RuntimeError)            the budget for requests is spent, or cannot be kept
    ├── RowCostError (RuntimeError)           the requests for one element have cost as much as they may
    └── HostError (RuntimeError)              about the process in which an isolated model lives
        ├── HostStartError                    it cannot be started
        └── HostDiedError                     it died while it worked

    RateLimitExceeded (RuntimeError)          Beam's name: a rate limiter refused the batch

``retryable`` on a class says whether the same batch may succeed if tried again unchanged.

Every error can also be made from its text alone. Engines do that: Beam's runners add the name of the failed step and
raise ``type(error)(text)``, so that ``except PredictionCountError`` around a pipeline works; pickle and copy do, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from types import FrameType
from typing import Any, ClassVar, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


class HeadraceError(Exception):
    """Base of all errors that Headrace raises."""

    retryable: ClassVar[bool] = False


class ConfigurationError(HeadraceError, ValueError):
    """A bad argument or combination of arguments; raised at construction, before any worker starts."""


class UnsupportedError(ConfigurationError):
    """A feature of the API that this version of Headrace does not have yet."""

    def __init__(self, feature: str, cure: str | None = None) -> None:
        """Names the ``feature`` and the ``cure``: what to do instead; without a cure, the first is the whole text."""
        text = f"{feature} is not available in this version of Headrace; {cure}."
        super().__init__(feature if cure is None else text)


class MissingExtraError(ConfigurationError, ModuleNotFoundError):
    """A framework that the handler needs is not installed."""

    def __init__(self, package: str, extra: str | None = None) -> None:
        """Names the missing ``package``, the ``extra`` of Headrace that brings it, and a command that installs it.

        Without an extra, the first argument is the whole text.
        """
        if extra is not None:
            package += f" is not installed; install the extra {extra!r} with: {install_command(package, extra)}"
        super().__init__(package)


def requirements(extra: str, distribution: str = "headrace") -> list[str]:
    """What an extra of an installed distribution requires, such as ``torch>=2.2``, without environment markers."""
    from importlib import metadata  # noqa: PLC0415 - takes a while to import, and only a missing extra needs it

    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    in_extra = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return [line.partition(";")[0].strip() for line in lines if in_extra.search(line)]


def install_command(package: str, extra: str, distribution: str = "headrace") -> str:
    """A shell command that installs what an extra requires; only ``package`` if that is unknown."""
    # The requirements, and not "headrace[extra]": Headrace is on no package index. cmd.exe knows no single quotes.
    return " ".join(["pip install", *(f'"{one}"' for one in requirements(extra, distribution) or [package])])


_PACKAGES = {
    "cuda": "cuda-python",
    "google.api_core": "google-cloud-aiplatform",
    "google.cloud": "google-cloud-aiplatform",
    "google.genai": "google-genai",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
}
"""Names of packages, by those of their modules where they are others."""


@contextmanager
def extra_required(extra: str) -> Iterator[None]:
    """A context for imports of a framework: a ModuleNotFoundError becomes a MissingExtraError.

    Of contexts within each other the outermost names the extra: a handler's, rather than that of what it imports.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        cause = error.__cause__ if isinstance(error, MissingExtraError) else error
        if not isinstance(cause, ModuleNotFoundError):  # it was not raised here, and knows its extra
            raise
        top, _, below = (cause.name or str(cause)).partition(".")
        inner = f"{top}.{below.partition('.')[0]}"
        raise MissingExtraError(_PACKAGES.get(inner) or _PACKAGES.get(top, top), extra) from cause


class PredictionCountError(HeadraceError, ValueError):
    """A handler did not return a list with one prediction for each example of its batch.

    The handler is at fault, not the examples: the batch is neither retried nor searched, since a part of it might have
    the right count by accident.
    """


class UnknownKeyError(HeadraceError, KeyError):
    """An element's key belongs to no model."""

    def __init__(self, key: object) -> None:
        """Names the ``key``; or takes the whole text of such an error."""
        is_text = isinstance(key, str) and _OF_NO_MAPPING in key
        super().__init__(key if is_text else f"key {key!r} {_OF_NO_MAPPING}; add it to the keys of one of them.")

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own text is a repr


_OF_NO_MAPPING = "belongs to no KeyModelMapping"


class ModelMemoryError(HeadraceError, MemoryError):
    """The machine's memory cannot hold a model, alone or beside what it already holds."""

    retryable = True

    def __init__(self, model: str, reason: str | None = None) -> None:
        """Names the ``model`` and the ``reason``, with figures and cure; without one, the first is the whole text."""
        super().__init__(model if reason is None else f"There is no room for {model}: {reason}")


class DeviceLostError(HeadraceError, RuntimeError):
    """This process cannot use a device, such as a GPU, any more; only a new process can.

    A handler may raise it, or raise another error from it, if Headrace would not recognise its framework's error. In a
    model host it ends the host, and the search for the element that caused it continues in a new one. In a worker
    process it is raised whatever exceptions are caught, since later failures are no element's fault.
    """


class EndpointError(HeadraceError, RuntimeError):
    """No request to a remote endpoint would succeed: a wrong key, URL or model, or an endpoint that never answered.

    It is raised whatever exceptions are caught, since no element is at fault.
    """

    def __init__(self, handler: str, reason: str | None = None) -> None:
        """Names the ``handler`` and the endpoint's ``reason``; without one, the first is the whole text."""
        text = (
            f"{handler}: the endpoint refused the first request, and would refuse all: {str(reason).rstrip('.')}. "
            "Check the key, its permissions, the URL and the model's name."
        )
        super().__init__(handler if reason is None else text)


class EndpointAnswerError(HeadraceError, RuntimeError):
    """A remote endpoint answered with an error, or with something else than an answer.

    Attributes:
        status_code: HTTP's, or the one that a code of gRPC stands for; None if there was none.
        headers: of the answer.
    """

    def __init__(self, message: str, status_code: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Says what the endpoint answered."""
        super().__init__(message)
        self.status_code = status_code
        self.headers = dict(headers or {})


class FallbackError(HeadraceError, RuntimeError):
    """A model and its fallback, or all of them, failed.

    Attributes:
        first: what the model raised; None if the error was made from its text.
        fallback: what its fallback raised, of several the last one.
    """

    def __init__(self, first: BaseException | str, fallback: BaseException | None = None) -> None:
        """Names both errors; without a second one, the first argument is the whole text.

        The first may be that of a model and of earlier fallbacks.
        """
        self.first: BaseException | None = first if isinstance(first, BaseException) else None
        self.fallback = fallback
        text = str(first) if isinstance(first, FallbackError | str) else f"{as_type_name(first)}: {first}"
        if fallback is not None:
            text = f"{text}; the fallback failed, too: {as_type_name(fallback)}: {fallback}"
        if isinstance(first, FallbackError):
            self.first = first.first
        super().__init__(text)


class BudgetError(HeadraceError, RuntimeError):
    """The budget for requests is spent, or cannot be kept, since a price or a report is missing.

    It is raised whatever exceptions are caught, once everything that was in flight has its outcome. Nothing more is
    requested by this process's part of the transform, however often its runner tries again.

    Args:
        message: why.
        left_out: of ``predict``, the positions of the elements that were read and have no outcome, counted from 0.
        read: of ``predict``, how many elements were read. Those behind them have no outcome, either.
    """

    def __init__(self, message: str = "", left_out: Sequence[int] = (), read: int = 0) -> None:
        super().__init__(message)
        self.left_out = tuple(left_out)
        self.read = read


class RowCostError(HeadraceError, RuntimeError):
    """The requests for one element have cost more than ``Budget.max_cost_per_row``, so no other one is sent for it."""


class HostError(HeadraceError, RuntimeError):
    """An error about a model host: the process in which an isolated model lives."""


class HostStartError(HostError):
    """A model host cannot be started."""

    def __init__(self, model: str, reason: str | None = None, traceback: Sequence[str] = ()) -> None:
        """Names the ``model`` and the ``reason``; without one, the first is the whole text.

        ``traceback`` is from the other process.
        """
        text = "\n".join([f"A host for {model} cannot be started: {reason}", *traceback])
        super().__init__(model if reason is None else text)


class HostDiedError(HostError):
    """A model host died: of a signal, for lack of memory, or ended by the model's own code."""

    retryable = True


class RateLimitExceeded(RuntimeError):
    """A rate limiter refused to let a batch of requests through."""


class NotYetHonouredWarning(UserWarning):
    """An option is accepted for compatibility, but has no effect in this version."""


def level_of_the_user() -> int:
    """The ``stacklevel`` of a warning by the calling function to name the first code outside of Headrace and Beam."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("headrace.", "apache_beam.")):
        frame, level = frame.f_back, level + 1
    return level


def as_type_name(value: object) -> str:
    """The name of an object's class, or of a class, under which it is reported: qualified unless built in."""
    cls = value if isinstance(value, type) else type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def causes(error: BaseException, *, suppressed: bool = False) -> Iterator[BaseException]:
    """The error, and those that led to it: causes, contexts, those of a group, and the reasons of urllib's.

    With ``suppressed`` also contexts that ``raise ... from None`` hides.
    """
    left: list[object] = [error]
    seen: set[int] = set()
    while left:
        link = left.pop()
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        parts = attribute(link, "exceptions")
        left += [attribute(link, "reason"), *(parts if isinstance(parts, tuple) else ())]
        left.append(link.__cause__ or (link.__context__ if suppressed or not link.__suppress_context__ else None))


def attribute(value: object, name: str) -> Any:
    """An attribute of an object of any library; None if it has none, or reading it raises something."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def copy_of(error: ErrorT) -> ErrorT:
    """A copy of an error, without its traceback, for one that is raised more than once; itself if it has no copy.

    A traceback grows each time that its error is raised, and keeps what its frames refer to.
    """
    try:
        copied = copy(error)
        if type(copied) is not type(error) or str(copied) != str(error):
            return error
    except Exception:
        return error
    for name in ("__cause__", "__context__", "__suppress_context__"):
        BaseException.__setattr__(copied, name, getattr(error, name))  # works for frozen dataclasses, too
    return copied
