"""While a run imports its libraries, Python looks for no garbage, and idle threads of a library leave their cores."""

import gc
import os
from unittest import mock

import pytest

from headrace.cli.importing import importing

DEFAULTS = {"OPENBLAS_THREAD_TIMEOUT": 26, "GOMP_SPINCOUNT": 300_000}
"""Those of the libraries."""


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in (*DEFAULTS, "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "any")  # so that the end of the test puts back what was there
        monkeypatch.delenv(name)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collections_are_afterwards_as_before(is_enabled):
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_what_was_imported_is_held_until_the_command_ends(folder, headrace, handlers):
    """No collection visits it, and none before the run either."""
    folder.write("in.csv", "a\n1\n")
    options = "run", "in.csv", "--handler", f"{handlers}:Add", "--output", "p.jsonl"
    with mock.patch("headrace.cli.run._run", side_effect=lambda *_: 10 + (gc.get_freeze_count() > 1000)):
        assert headrace(*options).code == 11
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("name", DEFAULTS)
def test_idle_threads_sleep_soon_unless_the_user_has_set_something_else(name, monkeypatch):
    with importing():
        assert int(os.environ[name]) < DEFAULTS[name]
    monkeypatch.setenv(name, "30")
    with importing():
        assert os.environ[name] == "30"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with importing():
        assert "GOMP_SPINCOUNT" not in os.environ
