"""Tests of handlers whose clients have an environment of their own, with the servers that they ask: make test-servers.

Other environments leave them out. Where Google's client for Vertex AI is installed, Beam finds Google's storage, too:
every import of it takes seconds longer, and gs:// is a known scheme. Triton's client wants older packages.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NEEDED = ("google-cloud-aiplatform", "mlserver", "tritonclient")


def is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


collect_ignore_glob = [] if all(map(is_installed, NEEDED)) else ["test_*.py"]
sys.path.append(str(Path(__file__).parent))
