"""Starts an isolated model's host while this process imports the handler, which takes both of them seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.handlers import factory_place
from headrace.cli.objects import search_here
from headrace.cli.options import RetryArgs, RunArgs


@contextmanager
def importing_ahead(args: RunArgs | RetryArgs) -> Iterator[None]:
    """While the context is open, a fork server imports the handler's module, if the run is going to need one."""
    from headrace.hosts.system import why_no_hosts  # noqa: PLC0415 - the other commands need no hosts

    is_isolated = (args.isolate or args.timeout is not None) and not args.placement and not args.runner
    place = factory_place(args.handler or "") if is_isolated and why_no_hosts() is None else None
    if place is None:
        yield
        return
    from headrace.hosts.spare import SPARE  # noqa: PLC0415 - not every system has what this module needs

    search_here()
    module, name = place
    SPARE.start(name, [module])
    try:
        yield
    finally:
        SPARE.drop()
