"""An isolated run has its fork server import the handler while it does so itself, where it is going to need one."""

from types import SimpleNamespace

import pytest

from headrace.cli.run import importing_ahead
from headrace.hosts.environment import threads_of_each
from headrace.hosts.fork_server_process import SPARE


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
    assert SPARE._process is None


@pytest.mark.parametrize(
    "options", [{}, {"isolate": True, "placement": "machine"}, {"isolate": True, "runner": "FnApiRunner"}]
)
def test_run_that_may_need_no_fork_server_of_its_own_starts_none_ahead(ahead, options):
    given = {"handler": "sklearn-numpy", "isolate": False, "timeout": None, "placement": None, "runner": None}
    with importing_ahead(SimpleNamespace(**{**given, **options})):
        assert SPARE._process is None
    assert ahead == []


@pytest.mark.parametrize("handler", ["Missing", "fails", "Unpicklable"])
def test_mistaken_run_leaves_no_fork_server(run, handlers, ahead, processes, handler):
    assert run("--isolate", handler=handler).code == 2
    assert [modules for _, modules in ahead] == [[handlers]]
    assert processes() == []
