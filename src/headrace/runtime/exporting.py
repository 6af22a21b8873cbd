"""Exports this process's events while it runs models, where OpenTelemetry's variables or Prometheus's ask for it."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headrace.core.errors import ConfigurationError
from headrace.core.events import WANTED, CallEnded, Observer
from headrace.core.registry import Registry
from headrace.metrics import otel
from headrace.runtime.observers import FanOut, Sampler, subscribed

PROMETHEUS = "HEADRACE_PROMETHEUS"
"""The variable that says where Prometheus gets the figures, as ``--prometheus`` does."""

_OF_SEVERAL = "PROMETHEUS_MULTIPROC_DIR"
"""The client's variable: the folder where processes count together."""

_LOGGER = logging.getLogger(__name__)


class _Exports(ExitStack):
    """What exports the events of this process, from the first of those who run models to the last."""

    def __init__(self, prometheus: str | None, *, samples: bool, several: bool) -> None:
        super().__init__()
        try:
            if prometheus and several:
                self._share_figures()
            observers = [*self._prometheus(prometheus), *(otel.observers() if otel.is_wanted() else ())]
            for one in observers:
                self.enter_context(subscribed(one))
            if observers:
                WANTED.add(CallEnded)
                self.callback(WANTED.discard, CallEnded)
                atexit.unregister(_end)
                atexit.register(_end)  # last registered, it runs before OpenTelemetry's own
            if observers and samples:
                self.enter_context(Sampler(FanOut(), gpus=True))
        except BaseException:
            self.close()
            raise

    def _share_figures(self) -> None:
        """Has processes that are started from now on count where this one shows it."""
        folder = os.environ.get(_OF_SEVERAL) or self.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
        values = {_OF_SEVERAL: folder, PROMETHEUS: "registry"}
        self.callback(os.environ.update, {name: os.environ[name] for name in values if name in os.environ})
        for name in values:
            self.callback(os.environ.pop, name, None)  # before what was there returns
        os.environ.update(values)

    def _prometheus(self, asked: str | None) -> list[Observer]:
        where = asked or os.environ.get(PROMETHEUS)
        if not where:
            return []
        from headrace.metrics.prometheus import shown  # noqa: PLC0415 - an extra

        try:
            return [self.enter_context(shown(where))]
        except (OSError, OverflowError) as error:
            said = f"no figures at {where}: {getattr(error, 'strerror', None) or error}."
            if asked:
                raise ConfigurationError(f"--prometheus: {said}") from error
            if _OF_SEVERAL in os.environ and getattr(error, "errno", None) == errno.EADDRINUSE:
                return [self.enter_context(shown("registry"))]  # another process of this machine shows all figures
            _LOGGER.warning("%s: %s", PROMETHEUS, said)
            return []


_OPEN: Registry[int, _Exports] = Registry()
"""By process: a forked child has none of its parent's threads."""


@contextmanager
def exporting(prometheus: str | None = None, *, samples: bool = True, several: bool = False) -> Iterator[None]:
    """Exports events while the context is open.

    Args:
        prometheus: where Prometheus gets the figures; None: as the environment says.
        samples: whether to sample what the process is at; False: somebody else does.
        several: whether an engine may start processes of its own, whose figures Prometheus gets here, too.

    Raises:
        ConfigurationError: Prometheus cannot get figures there.
        MissingExtraError: what is asked for needs an extra that is not installed.
    """
    _OPEN.open(os.getpid(), lambda: _Exports(prometheus, samples=samples, several=several))
    try:
        yield
    finally:
        stop_exporting()


def stop_exporting() -> None:
    """Ends one use, as leaving the context does."""
    if os.getpid() not in _OPEN:
        return  # a forked child ends what its parent has begun
    exports = _OPEN.close(os.getpid())
    if exports is not None:
        exports.close()


def _end() -> None:
    """Closes all exports as the process exits: generators left open would close them too late, when no thread runs."""
    for exports in _OPEN.values():
        exports.close()


def _forget() -> None:
    global _OPEN  # noqa: PLW0603 - another thread of the parent's may have its lock
    _OPEN = Registry()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
