"""The plug-in for TensorFlow in ``headrace.arrays``: what hosts must know about its models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.core.arrays import NoArrays, NotMappableError
from headrace.core.errors import extra_required

with extra_required("tensorflow"):
    import tensorflow
    from tensorflow.python.framework.ops import EagerTensor
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = ["TensorflowArrays"]


class TensorflowArrays(NoArrays):
    """Tensors are pickled by TensorFlow itself, as numpy's arrays."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Every variable, tensor and Keras layer or model is refused.

        TensorFlow allocates their memory itself, so each process would have a copy; and it starts threads when it
        unpickles the first of them, after which a fork of the process, such as a host, hangs.
        """
        layers = set(_subclasses(tensorflow.keras.layers.Layer)) if "keras" in sys.modules else set()
        return dict.fromkeys([EagerTensor, ResourceVariable, *layers], _refuse)

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Limits a process in which TensorFlow has not computed yet; afterwards TensorFlow refuses to change it."""
        threading = tensorflow.config.threading
        with suppress(RuntimeError):  # it has
            threading.set_intra_op_parallelism_threads(count)
            threading.set_inter_op_parallelism_threads(count)
        return lambda: None


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclass: type
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


def _refuse(_: Any) -> Any:
    raise NotMappableError("TensorFlow keeps tensors in memory of its own")
