"""Files beside the code."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from headrace.migrate import project
from headrace.migrate.project import findings_about, is_of_interest

BEAM = "numpy\napache-beam[gcp]==2.77.0\n"


@pytest.fixture(autouse=True)
def origin(monkeypatch):
    """Sets where Headrace was installed from; in these tests from an index, by its name."""

    def set_address(address):
        monkeypatch.setattr(project, "address", lambda: address)

    set_address("")
    return set_address


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
    assert finding.message == "lists apache-beam: add headrace[onnx,sklearn]; the moved code imports it."


ELSEWHERE = "the URL of a wheel, or of a Git repository: git+https://..."


@pytest.mark.parametrize(
    ("address", "added"),
    [
        ("git+https://host/headrace.git@c0ffee", "'headrace[onnx] @ git+https://host/headrace.git@c0ffee'"),
        ("file:///w/headrace.whl", f"'headrace[onnx] @ file:///w/headrace.whl' (on other machines: {ELSEWHERE})"),
        (None, f"'headrace[onnx] @ ADDRESS', where ADDRESS is {ELSEWHERE}"),
    ],
)
def test_requirement_has_the_address_that_headrace_came_from(origin, address, added):
    origin(address)
    (finding,) = findings_about(PurePath("requirements.txt"), BEAM, {"onnx"})
    assert finding.message == f"lists apache-beam: add {added}; the moved code imports it."


@pytest.mark.parametrize(
    ("text", "extras", "message"),
    [
        (BEAM, set(), "lists apache-beam: add headrace; the moved code imports it."),
        (BEAM, None, None),
        (f"{BEAM}headrace\n", set(), None),
        (f"{BEAM}headrace[onnx, sklearn]>=0.1\n", {"sklearn"}, None),
        (f"{BEAM}headrace[onnx] @ git+https://host/headrace.git\n", {"onnx"}, None),
        (
            f"{BEAM}headrace[onnx]\n",
            {"onnx", "sklearn"},
            "lists headrace without extras that the moved code needs: headrace[sklearn].",
        ),
        ("numpy\n", {"sklearn"}, None),
    ],
)
def test_dependencies_that_are_there_are_not_asked_for(text, extras, message):
    findings = findings_about(PurePath("requirements.txt"), text, extras)
    assert [one.message for one in findings] == ([message] if message else [])


def test_steps_of_beams_yaml_stay():
    text = "pipeline:\n  transforms:\n    - type: RunInference\n      config:\n        type: MLTransformer\n"
    (finding,) = findings_about(PurePath("p.yaml"), text, None)
    assert (finding.line, finding.needs_person) == (3, False)
    assert finding.message.startswith("RunInference in YAML is Beam's, and stays")


@pytest.mark.parametrize("name", ["main.py", "notes.txt", "README.md", "Dockerfile/x"])
def test_other_files_are_of_no_interest(name):
    assert not is_of_interest(PurePath(name))
