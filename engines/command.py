"""The command line that the pipelines have in common."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fetch import EngineError
from flink import add_arguments, up
from job import Job, look_after, run

LINGER_SECS = 60
"""Headrace's default on engines."""
_PATIENCE_SECS = 15


def run_kinds(
    description: str | None, kinds: Sequence[str], make: Callable[[str, Path, argparse.Namespace], Job]
) -> None:
    """Runs one kind of job after the other and prints what became of each; exits with 1 if one of Headrace's is wrong.

    Args:
        description: of the program.
        kinds: what there is, ``killed`` and ``beam`` among them: with a task manager that is killed, and Beam's own.
        make: makes the job of a kind, given a folder for its files, and the arguments.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", default=kinds, help=f"of {', '.join(kinds)}; default: all")
    add_arguments(parser)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that each batch takes longer")
    parser.add_argument("--linger", type=float, default=LINGER_SECS, help="seconds that an unused model stays")
    words = parser.parse_args()
    if unknown := set(words.kinds) - set(kinds):
        parser.error(f"there is no {unknown.pop()!r}, but {', '.join(kinds)}")
    try:
        cluster = up(words.name, words.machines, one_network=words.one_network)
    except EngineError as error:
        sys.exit(f"{words.name}: {error}")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder:
        for number, kind in enumerate(words.kinds, 1):
            job = make(kind, Path(folder), words)
            report = run(cluster, job, kill="tm2" if kind == "killed" else None)
            if number == len(words.kinds):  # those before it left their models to linger meanwhile
                look_after(cluster, report, words.linger + _PATIENCE_SECS)
            print(f"\n{report}\n", flush=True)
            bad += job.side == "headrace" and bool(report.problems)
    sys.exit(1 if bad else 0)
