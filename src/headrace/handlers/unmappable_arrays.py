"""What hosts must know about frameworks whose models cannot be mapped: the plug-ins in ``headrace.arrays``.

They allocate the memory of models themselves, so each process would have a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.core.arrays import ArrayCodec, NotMappableError

__all__ = ["TensorflowArrays", "XGBoostArrays"]


class TensorflowArrays(ArrayCodec):
    """Tensors are pickled by TensorFlow itself, as numpy's arrays."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Refuses each variable, tensor, layer and model: the first to be unpickled starts threads, and forks hang."""
        import tensorflow  # noqa: PLC0415 - only where it is imported already
        from tensorflow.python.framework.ops import EagerTensor  # noqa: PLC0415 - as above
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # noqa: PLC0415 - as above

        layers = set(_subclasses(tensorflow.keras.layers.Layer)) if "keras" in sys.modules else set()
        return dict.fromkeys([EagerTensor, ResourceVariable, *layers], partial(_refuse, "TensorFlow keeps tensors"))

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Limits a process in which TensorFlow has not computed yet; afterwards TensorFlow refuses to change it."""
        import tensorflow  # noqa: PLC0415 - as above

        threading = tensorflow.config.threading
        with suppress(RuntimeError):  # it has
            threading.set_intra_op_parallelism_threads(count)
            threading.set_inter_op_parallelism_threads(count)
        return lambda: None


class XGBoostArrays(ArrayCodec):
    """XGBoost has no arrays of its own, but models that must not be moved into shared memory."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Refuses each booster, also within an estimator: unpickling one starts OpenMP's threads, and forks hang."""
        import xgboost  # noqa: PLC0415 - only where it is imported already

        return {xgboost.Booster: partial(_refuse, "XGBoost keeps its trees")}


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclass: type
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


def _refuse(what: str, _: Any) -> Any:
    raise NotMappableError(f"{what} in memory of its own")
