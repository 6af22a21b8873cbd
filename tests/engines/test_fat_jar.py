"""One jar has what many have, and Java finds in it what it would find in them."""

from __future__ import annotations

import zipfile

import pytest


@pytest.fixture
def join(engine_module):
    return engine_module("fat_jar").join


def jar(path, **files):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_fat_jar_has_all_files_the_first_of_a_name_and_all_services(join, tmp_path):
    service = "META-INF/services/a.Service"
    first = jar(tmp_path / "1.jar", **{"a/A.class": "1", "META-INF/MANIFEST.MF": "old", service: "a.One"})
    second = jar(
        tmp_path / "2.jar", **{"a/A.class": "2", "b/B.class": "b", service: "b.Two", "META-INF/X.SF": "signed"}
    )
    join([first, second], tmp_path / "all.jar")
    with zipfile.ZipFile(tmp_path / "all.jar") as file:
        found = {name: file.read(name).decode() for name in file.namelist()}
    assert found.pop("META-INF/MANIFEST.MF").splitlines()[:2] == ["Manifest-Version: 1.0", "Multi-Release: true"]
    assert found == {"a/A.class": "1", "b/B.class": "b", service: "a.One\nb.Two\n"}
