"""While a run imports, Python looks for no garbage, idle threads sleep, and its fork server imports the handler."""

import gc
import os
from types import SimpleNamespace
from unittest import mock

import pytest

from headrace.cli.run import importing, importing_ahead
from headrace.hosts.environment import threads_of_each
from headrace.hosts.fork_server_client import SPARE

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


@pytest.mark.usefixtures("own_heap")
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


@pytest.fixture
def ahead(monkeypatch, folder):
    """The names and modules of fork servers that were started ahead."""
    folder.write("in.jsonl", [{"a": 1}, {"a": 2}])
    calls = []
    start = SPARE.start

    def started(*arguments):
        calls.append(arguments)
        start(*arguments)

    monkeypatch.setattr(SPARE, "start", started)
    return calls


@pytest.mark.parametrize(
    ("options", "started"),
    [
        (["--timeout", "60"], lambda module: [module]),
        (["--workers", "2"], lambda module: ["headrace.jobs.workers", module]),
    ],
)
def test_isolated_run_and_workers_have_their_fork_server_import_ahead(run, handlers, folder, ahead, options, started):
    result = run(*options)
    assert result.code == 0, result.err
    assert [row["prediction"] for row in folder.rows("p.jsonl")] == [1, 2]
    threads = (threads_of_each(2),) if "--workers" in options else ()
    assert ahead == [("Add", started(handlers), *threads)]
    assert not SPARE._spare


@pytest.mark.parametrize(
    "options", [{}, {"isolate": True, "placement": "machine"}, {"isolate": True, "runner": "FnApiRunner"}]
)
def test_run_that_may_need_no_fork_server_of_its_own_starts_none_ahead(ahead, options):
    given = {"handler": "sklearn-numpy", "isolate": False, "timeout": None, "placement": None, "runner": None}
    with importing_ahead(SimpleNamespace(**{**given, **options})):
        assert not SPARE._spare
    assert ahead == []


@pytest.mark.parametrize("handler", ["Missing", "fails", "Unpicklable"])
def test_mistaken_run_leaves_no_fork_server(run, handlers, ahead, processes, handler):
    assert run("--isolate", handler=handler).code == 2
    assert [modules for _, modules in ahead] == [[handlers]]
    assert processes() == []
