"""How long models stay in memory after their transform, depending on the runner."""

from __future__ import annotations

import sys
import uuid
from dataclasses import replace
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, SwitchingDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from headrace.runtime.spec import SessionSpec

_LINGER_SECS = 60.0
_DIRECT_RUNNERS = (SwitchingDirectRunner, BundleBasedDirectRunner, FnApiRunner, PrismRunner)
"""They keep their worker processes until the pipeline ends, or have none."""

_identities: WeakKeyDictionary[beam.Pipeline, str] = WeakKeyDictionary()


def bound_to(pipeline: beam.Pipeline, spec: SessionSpec) -> SessionSpec:
    """The spec of a transform of ``pipeline``.

    On engines whose worker processes come and go, the machine keeps an unused model for the next ones: for 60 seconds,
    unless the user has set ``linger_secs``.
    """
    identity = _identities.setdefault(pipeline, uuid.uuid4().hex)
    linger_secs = spec.linger_secs
    if linger_secs is None:
        linger_secs = 0.0 if isinstance(pipeline.runner, _DIRECT_RUNNERS) else _LINGER_SECS
    return replace(spec, pipeline=identity, linger_secs=linger_secs)


def lingers(spec: SessionSpec) -> bool:
    """Whether a closed session's models stay in this process until another transform's session opens.

    They do in an engine's worker process, which outlives its workers. In the user's own process they do not: the next
    run may need a new model. Shared models linger on the machine instead.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_sdk_worker = main is not None and main.name == "apache_beam.runners.worker.sdk_worker_main"
    return is_sdk_worker and not spec.shared
