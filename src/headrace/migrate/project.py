"""What files beside the code need: dependencies that name Headrace, pipelines in Beam's YAML."""

from __future__ import annotations

import re
from pathlib import PurePath

from headrace.migrate.findings import Finding

_DEPENDENCIES = re.compile(
    r"(?:[\w.-]*requirements[\w.-]*\.(?:txt|in)|pyproject\.toml|setup\.(?:py|cfg)|Pipfile|environment[\w.-]*\.ya?ml"
    r"|Dockerfile[\w.-]*)"
)
_BEAM = re.compile(r"apache[-_]beam\b")
_HEADRACE = re.compile(r"\bheadrace\b(?:\[([\w\s,.-]*)\])?")
_YAML_STEP = re.compile(r"^[\s-]*type:\s*['\"]?(RunInference|MLTransform|AnomalyDetection)\b", re.MULTILINE)


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
    if extras is not None and _DEPENDENCIES.fullmatch(path.name) and (beam := _BEAM.search(text)):
        findings += _about_dependencies(text, text.count("\n", 0, beam.start()) + 1, extras)
    return findings


def _about_dependencies(text: str, line: int, needed: set[str]) -> list[Finding]:
    named = list(_HEADRACE.finditer(text))
    there = {extra.strip() for found in named for extra in (found[1] or "").split(",")}
    missing = sorted(needed - there)
    if named and not missing:
        return []
    requirement = f"headrace[{','.join(missing)}]" if missing else "headrace"
    return [Finding(line, 0, f"lists apache-beam: add {requirement}, which the code that was moved imports.")]
