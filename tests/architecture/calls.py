"""How many files and calls of Headrace's an element passes, in batches of one; ``make measures`` prints it."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter

import headrace

_ROOT = os.path.dirname(headrace.__file__) + os.sep
_FIRST, _LAST, _ROWS = 100, 900, 1000
"""Elements that are measured: the others warm up, and end."""


class Local(headrace.ModelHandler):
    """Its model does nothing."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return list(batch)


class Remote(headrace.RemoteModelHandler):
    """Its requests are answered at once."""

    def create_client(self):
        return None

    async def request(self, batch, model, inference_args=None):
        return list(batch)


def measured(handler, **options):
    """Files that most elements pass, and calls for each, in all threads of this process."""
    calls = Counter()
    is_on = False

    def look(frame, event, _):
        if is_on and event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            calls[frame.f_code.co_filename, frame.f_code.co_name] += 1

    def rows():
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
