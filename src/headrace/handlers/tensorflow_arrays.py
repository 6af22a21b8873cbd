"""What hosts must know of TensorFlow's models: the plug-in that ``headrace.arrays`` finds for tensorflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.core.arrays import NoArrays, NotMappableError
from headrace.core.errors import MissingExtraError

try:
    import tensorflow
    from tensorflow.python.framework.ops import EagerTensor
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable
except ImportError as error:
    raise MissingExtraError("tensorflow", "tensorflow") from error

__all__ = ["TensorflowArrays"]


class TensorflowArrays(NoArrays):
    """Tensors travel as TensorFlow itself pickles them: as numpy's arrays."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Every variable, tensor and Keras layer or model is refused.

        Their memory is TensorFlow's own, so each process would have a copy; and TensorFlow starts threads when the
        first of them is unpickled, after which a fork of the process, such as a host, hangs.
        """
        layers = set(_subclasses(tensorflow.keras.layers.Layer)) if "keras" in sys.modules else set()
        return dict.fromkeys([EagerTensor, ResourceVariable, *layers], _refuse)

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Of a process in which TensorFlow has not computed yet; later it lets nobody change that."""
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
