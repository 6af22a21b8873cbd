"""What a pipeline's environment mean for the models of its transforms."""

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
"""They keep their worker processes until the pipeline is done, or have none."""

_identities: WeakKeyDictionary[beam.Pipeline, str] = WeakKeyDictionary()


def on_engine(spec: SessionSpec, pipeline: beam.Pipeline) -> SessionSpec:
    """The same, as a transform of ``pipeline``.

    Where worker processes come and go, the machine keeps a model a while for those that are yet to come, unless the
    user has said how long.
    """
    identity = _identities.setdefault(pipeline, uuid.uuid4().hex)
    linger_secs = spec.linger_secs
    if linger_secs is None:
        linger_secs = 0.0 if isinstance(pipeline.runner, _DIRECT_RUNNERS) else _LINGER_SECS
    return replace(spec, pipeline=identity, linger_secs=linger_secs)


def lingers(spec: SessionSpec) -> bool:
    """Whether this process holds a session's models until another transform's come.

    It does if an engine keeps it for its workers; in the user's own process the next run may want a new model. What the
    machine shares lingers there.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_engines = main is not None and main.name == "apache_beam.runners.worker.sdk_worker_main"
    return is_engines and not spec.shared
