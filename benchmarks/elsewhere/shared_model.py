"""Has a model that Beam shares, until standard input is closed: ``python -m elsewhere.shared_model FOLDER TAG``."""

from __future__ import annotations

import sys

from apache_beam.utils.multi_process_shared import MultiProcessShared

from elsewhere.last_number import LastNumber


def shared_model(folder: str, tag: str) -> MultiProcessShared:
    """As ``RunInference`` asks for a model with ``large_model=True``: the first process that does so has it."""
    return MultiProcessShared(LastNumber, tag, path=folder, always_proxy=True)


if __name__ == "__main__":
    owner = shared_model(*sys.argv[1:])
    owner.acquire()
    print("ready", flush=True)
    sys.stdin.read()
