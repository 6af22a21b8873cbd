"""What an extra requires, a command that installs it, and where Headrace itself was installed from.

The command lists the extra's requirements. ``pip install "headrace[extra]"`` would do only in an environment that has
Headrace installed: Headrace is on no package index.
"""

from __future__ import annotations

import json
import re

__all__ = ["address", "install_command", "requirements"]


def requirements(extra: str, distribution: str = "headrace") -> list[str]:
    """What an extra of an installed distribution requires, such as ``torch>=2.2``, without environment markers.

    Empty if the distribution is not installed, or has no such extra.
    """
    from importlib import metadata  # noqa: PLC0415 - takes a while to import, and only a missing extra needs it

    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    in_extra = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return [line.partition(";")[0].strip() for line in lines if in_extra.search(line)]


def install_command(package: str, extra: str, distribution: str = "headrace") -> str:
    """A shell command that installs what an extra requires; only ``package`` if that is unknown."""
    # Double quotes, because cmd.exe on Windows does not know single ones.
    return " ".join(["pip install", *(f'"{one}"' for one in requirements(extra, distribution) or [package])])


def address(distribution: str = "headrace") -> str | None:
    """Where an installed distribution came from, as ``pip install "NAME @ ADDRESS"`` takes it.

    Such as ``git+https://host/headrace.git@commit``, or the URL of a wheel or a folder. Empty if pip found it in an
    index, by its name; None if it is not installed.
    """
    from importlib import metadata  # noqa: PLC0415 - as above

    try:
        text = metadata.distribution(distribution).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if not text:
        return ""
    origin = json.loads(text)
    vcs = origin.get("vcs_info")
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else str(origin["url"])
    folder = origin.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url
