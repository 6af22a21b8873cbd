"""Files beside the code."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from headrace.migrate.project import findings_about, is_of_interest

BEAM = "numpy\napache-beam[gcp]==2.77.0\n"


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "dev-requirements.in",
        "requirements-gpu.txt",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "Pipfile",
        "environment.yml",
        "Dockerfile",
        "Dockerfile.gpu",
    ],
)
def test_files_of_dependencies_lack_what_the_code_needs(name):
    path = PurePath("deploy", name)
    assert is_of_interest(path)
    (finding,) = findings_about(path, BEAM, {"sklearn", "onnx"})
    assert (finding.line, finding.needs_person) == (2, True)
    assert finding.message == "lists apache-beam: add headrace[onnx,sklearn], which the code that was moved imports."


@pytest.mark.parametrize(
    ("text", "extras", "added"),
    [
        (BEAM, set(), "headrace"),
        (BEAM, None, None),
        (f"{BEAM}headrace\n", set(), None),
        (f"{BEAM}headrace[onnx, sklearn]>=0.1\n", {"sklearn"}, None),
        (f"{BEAM}headrace[onnx]\n", {"onnx", "sklearn"}, "headrace[sklearn]"),
        ("numpy\n", {"sklearn"}, None),
    ],
)
def test_dependencies_that_are_there_are_not_asked_for(text, extras, added):
    findings = findings_about(PurePath("requirements.txt"), text, extras)
    assert [one.message.partition("add ")[2].partition(",")[0] for one in findings] == ([added] if added else [])


def test_steps_of_beams_yaml_stay():
    text = "pipeline:\n  transforms:\n    - type: RunInference\n      config:\n        type: MLTransformer\n"
    (finding,) = findings_about(PurePath("p.yaml"), text, None)
    assert (finding.line, finding.needs_person) == (3, False)
    assert finding.message.startswith("RunInference in YAML is Beam's, and stays")


@pytest.mark.parametrize("name", ["main.py", "notes.txt", "README.md", "Dockerfile/x"])
def test_other_files_are_of_no_interest(name):
    assert not is_of_interest(PurePath(name))
