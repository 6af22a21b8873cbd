"""What is missing is said, with the cure; what was fetched half is fetched anew."""

from __future__ import annotations

import pytest


@pytest.fixture
def fetch(engine_module):
    return engine_module("fetch")


def test_missing_java_is_reported_with_what_to_install(fetch, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(fetch.EngineError, match="apt-get install openjdk-17"):
        fetch.java()


@pytest.mark.parametrize("what", ["job_server_jar", "spark_home"])
def test_missing_maven_is_reported_with_what_to_install(fetch, monkeypatch, tmp_path, what):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.EngineError, match="apt-get install maven"):
        getattr(fetch, what)(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fetched_files_are_not_fetched_again(fetch, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    home = tmp_path / f"job-server-{fetch.JOB_SERVER}"
    home.mkdir()
    assert fetch.job_server_jar(tmp_path) == str(home / "job-server.jar")


def test_a_download_that_fails_leaves_nothing_and_says_why(fetch, monkeypatch, tmp_path):
    monkeypatch.setattr(fetch, "_PAUSES_SECS", ())
    monkeypatch.setattr(fetch, "_installer", lambda: ["sh", "-c", "echo no way to it; exit 3"])
    with pytest.raises(fetch.EngineError, match=r"exit code 3[^$]*no way to it"):
        fetch.flink_jars(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_once_is_tried_again(fetch, monkeypatch, tmp_path):
    monkeypatch.setattr(fetch, "_PAUSES_SECS", (0.0, 0.0))
    tries = tmp_path / "tries"
    monkeypatch.setattr(fetch, "_installer", lambda: ["sh", "-c", f"echo >> {tries}; test $(wc -l < {tries}) -gt 2"])
    fetch.flink_jars(tmp_path / "engines")
    assert tries.read_text().count("\n") == 3
