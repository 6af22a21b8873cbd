"""How many files and calls of Headrace's an element passes, in batches of one; ``make measures`` prints it."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import headrace

_ROOT = os.path.dirname(headrace.__file__) + os.sep
_FIRST, _LAST, _ROWS = 100, 900, 1000
"""Elements that are measured: the others warm up, and end."""


class Local(headrace.ModelHandler[int, int, None]):
    """Its model does nothing."""

    def load_model(self) -> None:
        """None is needed."""

    def run_inference(self, batch: Any, model: None, inference_args: Any = None) -> list[int]:
        """The elements."""
        return list(batch)


class Remote(headrace.RemoteModelHandler[int, int, None]):
    """Its requests are answered at once."""

    def create_client(self) -> None:
        """None is needed."""

    async def request(self, batch: Any, model: None, inference_args: Any = None) -> list[int]:
        """The elements."""
        return list(batch)


def measured(handler: Any, **options: Any) -> tuple[int, float]:
    """Files that most elements pass, and calls for each, in all threads of this process."""
    calls: Counter[tuple[str, str]] = Counter()
    is_on = False

    def look(frame: FrameType, event: str, _: Any) -> None:
        if is_on and event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            calls[frame.f_code.co_filename, frame.f_code.co_name] += 1

    def rows() -> Iterator[int]:
        nonlocal is_on
        for row in range(_ROWS):
            is_on = _FIRST <= row < _LAST
            yield row

    threading.setprofile(look)
    sys.setprofile(look)
    batching = headrace.BatchingConfig(min_batch_size=1, max_batch_size=1)
    for _ in headrace.predict(handler, rows(), batching=batching, **options):
        pass
    sys.setprofile(None)
    threading.setprofile(None)
    steady = {call: count for call, count in calls.items() if count >= (_LAST - _FIRST) // 2}
    return len({file for file, _ in steady}), sum(calls.values()) / (_LAST - _FIRST)


if __name__ == "__main__":
    print("files and calls that an element passes:")
    for name, handler, options in (
        ("in process", Local(), {}),
        ("isolated, in the owner", Local(), {"isolate": True}),
        ("to an endpoint", Remote(), {}),
    ):
        files, each = measured(handler, **options)
        print(f"  {name:24} {files:3} {each:6.0f}")
