"""What another thread is working out, for one thread that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """The result of work in another thread; one thread waits for it, once.

    Unlike a ``Future``'s, its waits may be interrupted anywhere. Ctrl-C in the first instructions of ``Future.result``
    would leave the future locked, and the thread that works could never end.
    """

    def __init__(self) -> None:
        self._ended: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def run(self, work: Callable[[], T]) -> None:
        """Does the work; what it raises, ``result`` raises."""
        try:
            value = work()
        except BaseException as error:
            self._ended.put(_raising(error))
        else:
            self._ended.put(lambda: value)

    def result(self) -> T:
        """Waits for the result.

        Raises:
            BaseException: what the work raised.
        """
        return self._ended.get()()

    def is_over(self) -> bool:
        """Whether ``result`` returns at once: the work has ended, and nobody has taken its result."""
        return not self._ended.empty()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail
