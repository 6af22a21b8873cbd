"""Opens the worker of a thread, whether its models are in this process, mapped from shared memory, or in hosts."""

from __future__ import annotations

from headrace.runtime.session import close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.worker import AnyWorker, Worker


def open_worker(spec: SessionSpec, metrics_namespace: str | None = None) -> AnyWorker:
    """A new worker for this thread, of the kind that the spec asks for, with those of its fallbacks.

    Raises:
        Exception: the model cannot be loaded. The first bundle of an isolated model raises that, and that no host can
            be started, in place of this function.
    """
    if not spec.fallbacks:
        return _open(spec, metrics_namespace)
    worker = _open(spec.catching_for_fallback(), metrics_namespace)
    try:
        for fallback in spec.of_fallbacks():
            worker.fallbacks.append(_open(fallback, metrics_namespace))
    except BaseException:
        worker.close()
        raise
    return worker


def _open(spec: SessionSpec, metrics_namespace: str | None) -> AnyWorker:
    if not spec.is_hosted_or_shared:
        return Worker(spec, metrics_namespace)
    # Imported late: not every system has what these modules need.
    from headrace.runtime.hosted_models import HostedModels  # noqa: PLC0415 - as above
    from headrace.runtime.placement import HostedWorker, place_models  # noqa: PLC0415 - as above

    session = open_session(spec)
    try:
        models = session.shared(lambda: place_models(spec, session))
        kind = HostedWorker if isinstance(models, HostedModels) else Worker
        return kind(spec, metrics_namespace)
    finally:
        close_session(session)
