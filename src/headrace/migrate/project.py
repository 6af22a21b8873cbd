"""What files beside the code need: dependencies that name Headrace, pipelines in Beam's YAML."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import PurePath

from headrace.migrate.findings import Finding

_DEPENDENCIES = re.compile(
    r"(?:[\w.-]*requirements[\w.-]*\.(?:txt|in)|pyproject\.toml|setup\.(?:py|cfg)|Pipfile|environment[\w.-]*\.ya?ml"
    r"|Dockerfile[\w.-]*)"
)
BEAM = re.compile(r"apache[-_]beam\b")
_HEADRACE = re.compile(r"\bheadrace\b(?:\[([\w\s,.-]*)\])?")
_YAML_STEP = re.compile(r"^[\s-]*type:\s*['\"]?(RunInference|MLTransform|AnomalyDetection)\b", re.MULTILINE)

_ELSEWHERE = "the URL of a wheel, or of a Git repository: git+https://..."


def is_of_interest(path: PurePath) -> bool:
    """Whether a file, by its name, may list dependencies or be a pipeline in YAML."""
    return path.suffix in (".yaml", ".yml") or bool(_DEPENDENCIES.fullmatch(path.name))


def findings_about(path: PurePath, text: str, extras: set[str] | None) -> list[Finding]:
    """What a file needs.

    Args:
        path: of the file.
        text: its content.
        extras: those of Headrace that the code beside it needs; None: it does not use Headrace.
    """
    findings = []
    if path.suffix in (".yaml", ".yml"):
        for step in _YAML_STEP.finditer(text):
            line = text.count("\n", 0, step.start(1)) + 1
            message = f"{step[1]} in YAML is Beam's, and stays: Beam's YAML knows its own handlers only."
            findings.append(Finding(line, 0, message, needs_person=False))
    beam = BEAM.search(text) if _DEPENDENCIES.fullmatch(path.name) else None
    missing = missing_requirement(text, extras) if beam and extras is not None else None
    if beam and missing:
        findings.append(Finding(text.count("\n", 0, beam.start()) + 1, 0, missing))
    return findings


def missing_requirement(text: str, needed: set[str]) -> str | None:
    """What to say of a text that lists apache-beam, and lacks Headrace with the extras that the moved code needs."""
    named = list(_HEADRACE.finditer(text))
    there = {extra.strip() for found in named for extra in (found[1] or "").split(",")}
    missing = ",".join(sorted(needed - there))
    if named:
        return f"lists headrace without extras that the moved code needs: headrace[{missing}]." if missing else None
    requirement = _with_address(f"headrace[{missing}]" if missing else "headrace")
    return f"lists apache-beam: add {requirement}; the moved code imports it."


def _with_address(requirement: str) -> str:
    """The requirement as pip can resolve it: Headrace is on no public package index."""
    where = address()
    if where is None:
        return f"'{requirement} @ ADDRESS', where ADDRESS is {_ELSEWHERE}"
    if not where:
        return requirement
    return f"'{requirement} @ {where}'" + (f" (on other machines: {_ELSEWHERE})" if where.startswith("file:") else "")


def address(distribution: str = "headrace") -> str | None:
    """Where an installed distribution came from, as ``pip install "NAME @ ADDRESS"`` takes it.

    Such as ``git+https://host/headrace.git@commit``, or the URL of a wheel or a folder. Empty if pip found it in an
    index, by its name; None if it is not installed.
    """
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
