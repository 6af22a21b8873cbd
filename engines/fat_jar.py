"""Puts many jars into one: the job server sends its class path with each job, file by file, at 0.1 s for each."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_SIGNATURE = re.compile(r"META-INF/[^/]+\.(SF|DSA|RSA|EC)")
_MANIFEST = "META-INF/MANIFEST.MF"
_SERVICES = "META-INF/services/"


def join(jars: Iterable[Path], target: Path) -> None:
    """Writes one jar with all that is in the others; of files of one name the first counts, of lists of services all.

    Signatures do not hold for it and stay out.
    """
    services: dict[str, list[bytes]] = defaultdict(list)
    seen: set[str] = {_MANIFEST}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as output:
        output.writestr(_MANIFEST, "Manifest-Version: 1.0\r\nMulti-Release: true\r\n\r\n")
        for jar in jars:
            with zipfile.ZipFile(jar) as source:
                for entry in source.infolist():
                    name = entry.filename
                    if name.startswith(_SERVICES) and not entry.is_dir():
                        services[name].append(source.read(entry))
                    elif name not in seen and not entry.is_dir() and not _SIGNATURE.fullmatch(name):
                        seen.add(name)
                        output.writestr(name, source.read(entry))
        for name, lists in services.items():
            output.writestr(name, b"\n".join(lists) + b"\n")
