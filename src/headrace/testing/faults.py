"""Handlers that fail, each in one way, to test what happens to the elements.

Most raise exceptions. A ``FaultyHandler`` ends or hangs its process, so it belongs in a model host
(``predict(..., isolate=True, timeout=...)``). What it does is its *fault*: a function without arguments that pickles.
All of them also take the options of ``headrace.ModelHandler``.
Some faults are defined here, and the standard library has others::

    functools.partial(signal.raise_signal, signal.SIGKILL)  # killed by a signal; SIGSTOP: stopped until it is killed
    functools.partial(os._exit, 3)  # ends at once, without cleaning up
    functools.partial(sys.exit, 4)  # ends like a program that gives up
    os.abort  # C's abort(), as when an assertion in native code fails
"""

from __future__ import annotations

import ctypes
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

from headrace.core.result import PredictionResult
from headrace.testing.fakes import Doubler, DoublingHandler


class PoisonHandler(DoublingHandler):
    """Doubles, but raises for any batch with a poisonous example.

    Args:
        poison: the poisonous examples.
        error: what to raise.
    """

    def __init__(self, *poison: Any, error: type[Exception] = ValueError, **options: Any) -> None:
        super().__init__(**options)
        self._poison = poison
        self._error = error

    def _check(self, batch: Sequence[Any]) -> None:
        poisoned = [example for example in batch if example in self._poison]
        if poisoned:
            raise self._error(f"poisonous examples: {poisoned}")


class MiscountingHandler(DoublingHandler):
    """Doubles, but returns too few or too many predictions: omits the last ones, or repeats the last one.

    Args:
        surplus: how many predictions to return beyond one for each example; negative: how many to omit.
    """

    def __init__(self, surplus: int, **options: Any) -> None:
        super().__init__(**options)
        self._surplus = surplus

    def _changed(self, predictions: list[PredictionResult]) -> Iterable[PredictionResult]:
        kept = max(0, len(predictions) + min(0, self._surplus))
        return predictions[:kept] + predictions[-1:] * self._surplus


class NoneHandler(DoublingHandler):
    """Forgets to return its predictions."""

    def _changed(self, predictions: list[PredictionResult]) -> Iterable[PredictionResult]:
        return None  # type: ignore[return-value]


class BrokenGeneratorHandler(DoublingHandler):
    """Returns its predictions lazily, and raises a RuntimeError after its call has returned.

    Args:
        good: how many predictions precede the error; a batch of at most this size succeeds.
    """

    def __init__(self, good: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._good = good

    def _changed(self, predictions: list[PredictionResult]) -> Iterator[PredictionResult]:
        yield from predictions[: self._good]
        if len(predictions) > self._good:
            raise RuntimeError(f"broke after {self._good} predictions")


class MemoryHungryHandler(DoublingHandler):
    """Doubles, but runs out of memory on large batches.

    Args:
        limit: the largest batch that fits, in examples.
    """

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit = limit

    def _check(self, batch: Sequence[Any]) -> None:
        if len(batch) > self._limit:
            raise MemoryError(f"out of memory: {len(batch)} examples, of which {self._limit} fit")


class FakeDevice:
    """A GPU that can be lost: afterwards every use in this process fails; other processes still have it.

    ``FaultyFunction(device.lose, 13)`` and ``FaultyLoadHandler(device.lose)`` lose it outside inference.

    Args:
        error: what to raise.
        message: the error's message; by default PyTorch's after a failed assertion in a kernel.
    """

    def __init__(
        self, error: type[Exception] = RuntimeError, message: str = "CUDA error: device-side assert triggered"
    ) -> None:
        self._error = error
        self._message = message
        self._name = uuid.uuid4().hex  # shared with pickled copies in other processes

    def lose(self) -> NoReturn:
        """Loses the device for this process; raises what every later use raises."""
        _lost_devices.add((os.getpid(), self._name))
        raise self._error(self._message)

    def use(self) -> None:
        """Raises if this process has lost it."""
        if (os.getpid(), self._name) in _lost_devices:
            self.lose()


_lost_devices: set[tuple[int, str]] = set()
"""Pairs of process and device, since forked processes have devices of their own."""


Fault: TypeAlias = Callable[[], Any]
_MEGABYTE = 1 << 20


class FaultyHandler(DoublingHandler):
    """Doubles, but commits a fault for any batch with one of certain examples.

    Args:
        fault: what it does then; if it returns, its result is ignored.
        examples: those that cause the fault.
    """

    def __init__(self, fault: Fault, *examples: Any, **options: Any) -> None:
        super().__init__(**options)
        self._fault = fault
        self._examples = examples

    def _check(self, batch: Sequence[Any]) -> None:
        if any(example in self._examples for example in batch):
            self._fault()


class DeviceLosingHandler(FaultyHandler):
    """Doubles on a device, and loses it with any batch that has a poisonous example; later calls and loads fail.

    Args:
        poison: the poisonous examples.
        device: the device; by default a new one.
    """

    def __init__(self, *poison: Any, device: FakeDevice | None = None, **options: Any) -> None:
        self._device = device or FakeDevice()
        super().__init__(self._device.lose, *poison, **options)

    def load_model(self) -> Doubler:
        """Raises if this process has lost the device."""
        self._device.use()
        return super().load_model()

    def _check(self, batch: Sequence[Any]) -> None:
        self._device.use()
        super()._check(batch)


class FaultyLoadHandler(DoublingHandler):
    """Doubles, but commits a fault when its model is loaded.

    Args:
        fault: what it does; if it returns, the model is loaded.
    """

    def __init__(self, fault: Fault, **options: Any) -> None:
        super().__init__(**options)
        self._fault = fault

    def load_model(self) -> Doubler:
        """Commits the fault."""
        self._fault()
        return super().load_model()


class BrokenLoadHandler(DoublingHandler):
    """Has a model that cannot be loaded.

    Args:
        error: what to raise.
    """

    def __init__(self, error: type[Exception] = OSError, **options: Any) -> None:
        super().__init__(**options)
        self._error = error

    def load_model(self) -> Doubler:
        """Raises ``error``."""
        raise self._error("the model cannot be loaded")


class FaultyFunction:
    """For pre- and postprocessing: returns its argument, but commits a fault for certain values.

    Args:
        fault: what it does then.
        values: those that cause the fault.
    """

    def __init__(self, fault: Fault, *values: Any) -> None:
        self._fault = fault
        self._values = values

    def __call__(self, value: Any) -> Any:
        """Returns ``value``, unless it causes the fault."""
        if value in self._values:
            self._fault()
        return value


def segfault() -> NoReturn:
    """Reads unmapped memory, as native code with a bug does: SIGSEGV."""
    ctypes.string_at(0)
    raise AssertionError("the memory at address 0 could be read")


def hang() -> NoReturn:
    """Waits forever, in Python."""
    while True:
        threading.Event().wait()


def hang_in_c() -> NoReturn:
    """Waits forever in C; other threads of the process continue."""
    while True:
        ctypes.CDLL(None).pause()


def hang_holding_gil() -> NoReturn:
    """Waits forever in C with the interpreter's lock: no Python code of the process runs any more."""
    while True:
        ctypes.PyDLL(None).pause()


def eat_memory(most_bytes: int) -> NoReturn:
    """Fills memory until the kernel kills the process for it.

    Args:
        most_bytes: where it stops, so that a machine without a limit survives.

    Raises:
        MemoryError: that much memory was available.
    """
    hoard: list[bytes] = []
    while len(hoard) * _MEGABYTE < most_bytes:
        hoard.append(b"\1" * _MEGABYTE)
    raise MemoryError(f"{most_bytes:,} bytes were eaten, and nobody minded")
