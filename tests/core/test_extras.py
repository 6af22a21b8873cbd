"""The command for a missing extra works wherever Headrace came from."""

from __future__ import annotations

import importlib

import pytest

from headrace.core.errors import MissingExtraError, extra_required, install_command, requirements


@pytest.fixture
def install(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def build(*requires):
        folder = tmp_path / "words-1.0.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", "Name: words", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requires)]
        (folder / "METADATA").write_text("\n".join(lines))
        importlib.invalidate_caches()

    return build


def test_requirements_are_those_of_the_extra(install):
    install("always", 'a>=1; extra == "x"', "b[c]; (python_version < '4') and extra == 'x'", 'd; extra == "x-y"')
    assert requirements("x", "words") == ["a>=1", "b[c]"]
    assert requirements("z", "words") == []
    assert requirements("x", "words-that-nobody-installed") == []


def test_command_installs_the_requirements_and_not_the_distribution(install):
    install('a>=1,<2; extra == "x"', "b; extra == 'x'")
    assert install_command("a", "x", "words") == 'pip install "a>=1,<2" "b"'


def test_outermost_extra_is_named():
    outer = pytest.raises(MissingExtraError, match="no_such_module is not installed; install the extra 'outer'")
    with outer, extra_required("outer"), extra_required("inner"):
        raise ModuleNotFoundError(name="no_such_module.inner")


def test_an_extra_that_is_known_already_stays():
    with pytest.raises(MissingExtraError, match="the extra 'known'"), extra_required("outer"):
        raise MissingExtraError("package", "known")


def test_a_broken_framework_speaks_for_itself():
    with pytest.raises(ImportError, match="libgpu: cannot open"), extra_required("outer"):
        raise ImportError("libgpu: cannot open")
