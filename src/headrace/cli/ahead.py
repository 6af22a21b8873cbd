"""Starts the first process of hosts and workers while this one imports the handler, which takes both seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.handlers import factory_place
from headrace.cli.objects import search_here
from headrace.cli.options import RetryArgs, RunArgs

_RUNS_PARTS = "headrace.jobs.part_runner"


@contextmanager
def importing_ahead(args: RunArgs | RetryArgs) -> Iterator[None]:
    """While the context is open, a fork server imports the handler's module, if the run is going to need one."""
    from headrace.hosts.system import why_no_hosts  # noqa: PLC0415 - the other commands need no hosts

    is_isolated = (args.isolate or args.timeout is not None) and not args.placement and not args.runner
    workers = 1 if args.runner else getattr(args, "workers", 1) or 1
    place = factory_place(args.handler or "") if (is_isolated or workers > 1) and why_no_hosts() is None else None
    if place is None:
        yield
        return
    from headrace.hosts.environment import threads_of_each  # noqa: PLC0415 - not every system has what this needs
    from headrace.hosts.fork_server_process import SPARE  # noqa: PLC0415 - as above

    search_here()
    module, name = place
    if workers > 1:
        SPARE.start(name, [_RUNS_PARTS, module], threads_of_each(workers))
    else:
        SPARE.start(name, [module])
    try:
        yield
    finally:
        SPARE.drop()
