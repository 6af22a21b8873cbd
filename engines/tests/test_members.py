"""Whether a process has ended is known even of one that nobody has waited for."""

from __future__ import annotations

import subprocess
import sys

from members import ended, wait_until


def test_a_process_has_ended_once_it_is_a_zombie_or_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not ended(process.pid)
        process.stdin.close()
        assert wait_until(lambda: ended(process.pid), 60)  # a zombie: it is waited for only below
    assert ended(process.pid)
