"""Holds a process of a test at the moment that ``FAULTS_MOMENT`` names; importing this in a fork server is "start"."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = os.environ["FAULTS_FOLDER"]


def hold(moment: str) -> None:
    """Reports and waits until it may go on, if this is the moment."""
    if os.environ["FAULTS_MOMENT"] == moment:
        Path(FOLDER, "held").touch()
        wait_for("go")


def wait_for(name: str) -> None:
    """Until there is a file of that name."""
    while not Path(FOLDER, name).exists():
        time.sleep(0.002)


if "HEADRACE_HOST_OF" in os.environ:
    hold("start")
