"""Handlers that go wrong, each in one way, so that a test can see what becomes of the elements.

Most raise exceptions. A ``FaultyHandler`` ends or hangs its process, so it belongs in a model host
(``predict(..., isolate=True, timeout=...)``). What it does is its *fault*: a function without arguments, which pickles.
Faults are defined here, and the standard library has others::

    functools.partial(signal.raise_signal, signal.SIGKILL)  # killed by a signal; SIGSTOP: held until it is killed
    functools.partial(os._exit, 3)  # ends at once, whoever is in the way
    functools.partial(sys.exit, 4)  # ends as a program does that has had enough
    os.abort  # C's abort(): what native code does when an assertion of its own fails
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
    """Doubles, but raises on any batch that holds a poisonous example.

    Args:
        poison: the poisonous examples.
        error: what to raise.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, *poison: Any, error: type[Exception] = ValueError, **options: Any) -> None:
        super().__init__(**options)
        self._poison = poison
        self._error = error

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Raises ``error`` if the batch is poisoned."""
        poisoned = [example for example in batch if example in self._poison]
        if poisoned:
            raise self._error(f"poisonous examples: {poisoned}")
        return super().run_inference(batch, model, inference_args)


class MiscountingHandler(DoublingHandler):
    """Doubles, but gives too few or too many predictions.

    Args:
        surplus: how many predictions more than examples; negative for fewer.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, surplus: int, **options: Any) -> None:
        super().__init__(**options)
        self._surplus = surplus

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """The first predictions of the batch where there are to be fewer, its last one repeated for more."""
        predictions = list(super().run_inference(batch, model, inference_args))
        kept = max(0, len(predictions) + min(0, self._surplus))
        return predictions[:kept] + predictions[-1:] * self._surplus


class NoneHandler(DoublingHandler):
    """Forgets to return its predictions."""

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Returns None."""
        super().run_inference(batch, model, inference_args)
        return None  # type: ignore[return-value]


class BrokenGeneratorHandler(DoublingHandler):
    """Gives its predictions lazily and raises on the way, after its call has returned.

    Args:
        good: how many predictions come before the error; a batch of so many or fewer goes well.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, good: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._good = good

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterator[PredictionResult]:
        """Raises RuntimeError when asked for one prediction too many."""
        for place, prediction in enumerate(super().run_inference(batch, model, inference_args)):
            if place >= self._good:
                raise RuntimeError(f"broke after {self._good} predictions")
            yield prediction


class MemoryHungryHandler(DoublingHandler):
    """Doubles, but runs out of memory on large batches.

    Args:
        limit: the largest batch that fits, in examples.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit = limit

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Raises MemoryError above the limit."""
        if len(batch) > self._limit:
            raise MemoryError(f"out of memory: {len(batch)} examples, of which {self._limit} fit")
        return super().run_inference(batch, model, inference_args)


class BrokenLoadHandler(DoublingHandler):
    """Has a model that cannot be loaded.

    Args:
        error: what to raise.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, error: type[Exception] = OSError, **options: Any) -> None:
        super().__init__(**options)
        self._error = error

    def load_model(self) -> Doubler:
        """Raises ``error``."""
        raise self._error("the model cannot be loaded")


class FakeDevice:
    """A GPU that can be lost: once it is, whatever this process asks of it fails; other processes have it still.

    ``FaultyFunction(device.lose, 13)`` and ``FaultyLoadHandler(device.lose)`` lose it elsewhere than in inference.

    Args:
        error: what to raise.
        message: what it says; by default what PyTorch says of an assertion that failed in a kernel.
    """

    def __init__(
        self, error: type[Exception] = RuntimeError, message: str = "CUDA error: device-side assert triggered"
    ) -> None:
        self._error = error
        self._message = message
        self._name = uuid.uuid4().hex  # known to the copies that other processes have

    def lose(self) -> NoReturn:
        """Loses it for this process, and raises what every later use raises."""
        _lost_devices.add((os.getpid(), self._name))
        raise self._error(self._message)

    def use(self) -> None:
        """Raises if this process has lost it."""
        if (os.getpid(), self._name) in _lost_devices:
            self.lose()


_lost_devices: set[tuple[int, str]] = set()
"""By process, since those that are forked have devices of their own."""


class DeviceLosingHandler(DoublingHandler):
    """Doubles on a device, and loses it on any batch that holds a poisonous example: from then on every call fails.

    Args:
        poison: the poisonous examples.
        device: the device; by default one of its own.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, *poison: Any, device: FakeDevice | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._poison = poison
        self._device = device or FakeDevice()

    def load_model(self) -> Doubler:
        """Raises if this process has lost the device."""
        self._device.use()
        return super().load_model()

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Raises if the batch is poisoned, or any batch in this process was before."""
        self._device.use()
        if any(example in self._poison for example in batch):
            self._device.lose()
        return super().run_inference(batch, model, inference_args)


Fault: TypeAlias = Callable[[], Any]
_MEGABYTE = 1 << 20


class FaultyHandler(DoublingHandler):
    """Doubles, but commits a fault on any batch that holds one of certain examples.

    Args:
        fault: what it does then; what ``fault`` returns is ignored, should it return.
        examples: the ones that it cannot bear.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, fault: Fault, *examples: Any, **options: Any) -> None:
        super().__init__(**options)
        self._fault = fault
        self._examples = examples

    def run_inference(
        self, batch: Sequence[Any], model: Doubler, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """Commits the fault if it must."""
        if any(example in self._examples for example in batch):
            self._fault()
        return super().run_inference(batch, model, inference_args)


class FaultyLoadHandler(DoublingHandler):
    """Doubles, but commits a fault whenever its model is loaded.

    Args:
        fault: what it does; where it returns, the model is loaded after all.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, fault: Fault, **options: Any) -> None:
        super().__init__(**options)
        self._fault = fault

    def load_model(self) -> Doubler:
        """Commits the fault."""
        self._fault()
        return super().load_model()


class FaultyFunction:
    """For pre- and postprocessing: gives back what it is given, but commits a fault on certain values.

    Args:
        fault: what it does then.
        values: the ones that it cannot bear.
    """

    def __init__(self, fault: Fault, *values: Any) -> None:
        self._fault = fault
        self._values = values

    def __call__(self, value: Any) -> Any:
        """Commits the fault if it must."""
        if value in self._values:
            self._fault()
        return value


def segfault() -> NoReturn:
    """Reads memory that is not there, as native code with a bug does: SIGSEGV."""
    ctypes.string_at(0)
    raise AssertionError("the memory at address 0 could be read")


def hang() -> NoReturn:
    """Waits for ever, in Python."""
    while True:
        threading.Event().wait()


def hang_in_c() -> NoReturn:
    """Waits for ever in C; other threads of the process go on."""
    while True:
        ctypes.CDLL(None).pause()


def hang_holding_gil() -> NoReturn:
    """Waits for ever in C and keeps the interpreter's lock: no Python code of the process runs any more."""
    while True:
        ctypes.PyDLL(None).pause()


def eat_memory(most_bytes: int) -> NoReturn:
    """Fills memory until the kernel kills the process for it.

    Args:
        most_bytes: where it stops, so that a machine without a limit survives.

    Raises:
        MemoryError: that much was to be had.
    """
    hoard: list[bytes] = []
    while len(hoard) * _MEGABYTE < most_bytes:
        hoard.append(b"\1" * _MEGABYTE)
    raise MemoryError(f"{most_bytes:,} bytes were eaten, and nobody minded")
