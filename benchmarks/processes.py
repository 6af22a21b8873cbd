"""Runs a process that may crash, hang or leave others behind, and kills whatever remains of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO


def run_to_the_end(command: Sequence[str], limit_secs: float, *, directory: Path, log: IO[str]) -> str:
    """Waits for the process, at most ``limit_secs``, and kills its whole group afterwards.

    Returns:
        How it ended, in words.
    """
    process = subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        code = process.wait(limit_secs)
    except subprocess.TimeoutExpired:
        return f"killed after {limit_secs:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):  # none is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"failed with exit code {code}" if code else "by itself"
