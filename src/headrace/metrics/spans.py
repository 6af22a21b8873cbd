"""Makes a span of each batch, with those of its model's load, its host and its requests, from what events say."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from headrace.core.errors import as_type_name
from headrace.core.events import BatchCompleted, BatchFailed, CallEnded, Event, ModelLoaded
from headrace.metrics.instruments import ERROR, MODEL, OPERATION, PROVIDER, REQUEST_MODEL

_MOST_PER_SEC = 10
"""Traces of a process, unless a sampler is named: far more cost what they tell nobody."""
_MOST_CHILDREN = 128
_NANOS = 1e9


class _Children(threading.local):
    """What belongs to the batch that a thread is at."""

    def __init__(self) -> None:
        self.children: deque[ModelLoaded | CallEnded] = deque(maxlen=_MOST_CHILDREN)


class BatchSpans:
    """An Observer: makes a batch's spans once it is over, on the thread that reports what belongs to it before.

    Args:
        tracer: of a provider, whose sampler decides; without one named in ``OTEL_TRACES_SAMPLER``, up to ten batches a
            second have spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._gap_secs = 0.0 if os.environ.get("OTEL_TRACES_SAMPLER") else 1 / _MOST_PER_SEC
        self._next = 0.0
        self._thread = _Children()

    def on_event(self, event: Event) -> None:
        """Keeps what belongs to a batch until it is over."""
        if isinstance(event, ModelLoaded | CallEnded):
            self._thread.children.append(event)
        elif isinstance(event, BatchCompleted | BatchFailed):
            now, children = time.monotonic(), self._thread.children
            if now >= self._next:
                self._next = now + self._gap_secs
                self._batch(event, [*children])
            children.clear()

    def _batch(self, event: BatchCompleted | BatchFailed, children: list[ModelLoaded | CallEnded]) -> None:
        seconds = event.seconds if isinstance(event, BatchCompleted) else 0.0
        calls = [one for one in children if isinstance(one, CallEnded)]
        began = min(event.ended - int(seconds * _NANOS), *map(_began, calls), event.ended)
        span = self._tracer.start_span("headrace.batch", start_time=began, attributes=_of_batch(event))
        if span.is_recording():
            context = set_span_in_context(span)
            for child in children:
                kind = SpanKind.CLIENT if isinstance(child, CallEnded) else SpanKind.INTERNAL
                one = self._tracer.start_span(_name(child), context, kind, _of_child(child), start_time=_began(child))
                _end(one, getattr(child, "error_type", ""), child.ended)
        error = as_type_name(event.error) if isinstance(event, BatchFailed) else ""
        _end(span, error, max([event.ended, *(one.ended for one in calls)]))


def _began(event: ModelLoaded | CallEnded) -> int:
    return event.ended - int(event.seconds * _NANOS)


def _end(span: Span, error: str, ended: int) -> None:
    if error:
        span.set_attribute(ERROR, error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended)


def _name(child: ModelLoaded | CallEnded) -> str:
    if isinstance(child, ModelLoaded):
        return "headrace.load"
    if child.operation:
        return f"{child.operation} {child.name}".rstrip()
    return "headrace.request" if child.is_request else "headrace.host"


def _of_batch(event: BatchCompleted | BatchFailed) -> dict[str, Any]:
    found: dict[str, Any] = {"headrace.batch.examples": event.examples}
    if event.model:
        found[MODEL] = event.model
    if isinstance(event, BatchCompleted):
        found["headrace.batch.bytes"] = event.bytes
        if event.where is not None:
            found["headrace.file"], found["headrace.row"] = event.where
    return found


def _of_child(child: ModelLoaded | CallEnded) -> dict[str, Any]:
    if isinstance(child, ModelLoaded):
        return {"headrace.model.bytes": child.bytes}
    if not child.operation:
        return {}
    tokens = {
        f"gen_ai.usage.{kind}_tokens": count
        for kind, count in zip(("input", "output"), child.tokens, strict=True)
        if count
    }
    return {OPERATION: child.operation, PROVIDER: child.provider, REQUEST_MODEL: child.name, **tokens}
