"""The command behind ``make fuzz``: every fuzzer in turn, round after round, with cases that were never tried before.

A fuzzer is a module of this folder's ``targets`` with ``ROUND``, how many cases make a round of about ten seconds, and
``run(seed, cases)``, which raises where rows that went in are not what came out. One that needs more than
Python packages has ``unable()``, too: why it cannot run on this machine, or None if it can. The suite runs a few cases
of each (``test_*.py`` beside this file), with seeds that stay the same.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """Returns 1 if a case failed, and says how to try it again."""
    names = sorted(path.stem for path in (FOLDER / "targets").glob("[a-z]*.py"))
    words = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.splitlines()[0])
    words.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(names)}; all by default")
    words.add_argument("--seconds", type=float, default=3600, help="stop after so long, when a round ends")
    words.add_argument("--cases", type=int, help="of each target, in place of --seconds")
    words.add_argument("--seed", type=int, help="of a single round, as a failure named it")
    asked = words.parse_args()
    if unknown := set(asked.targets) - set(names):
        words.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(names)}.")
    return fuzz(asked.targets or names, asked)


def fuzz(names: list[str], asked: argparse.Namespace) -> int:
    """Rounds of each target until the time is over, or as many cases as were asked for."""
    sys.path[:0] = [str(FOLDER / "targets"), str(FOLDER.parent)]
    targets = {name: importlib.import_module(name) for name in names}
    failed = without_unable(targets)
    tried, deadline = Counter(), time.monotonic() + asked.seconds
    while targets and (asked.cases or time.monotonic() < deadline):
        for name, target in list(targets.items()):
            seed = random.randrange(2**32) if asked.seed is None else asked.seed
            cases = target.ROUND if asked.cases is None else min(target.ROUND, asked.cases - tried[name])
            failed += round_of(name, target, seed, cases)
            tried[name] += cases
            if asked.seed is not None or tried[name] == asked.cases:
                del targets[name]
        print(", ".join(f"{name} {count:,}" for name, count in tried.items()), f"- {len(failed)} failed", flush=True)
    print(*failed, sep="\n")
    return 1 if failed else 0


def without_unable(targets: dict[str, object]) -> list[str]:
    """Removes the targets that cannot run on this machine; a line for each, which says why."""
    lines = []
    for name, target in list(targets.items()):
        if hasattr(target, "unable") and (why := target.unable()):
            lines.append(f"{name} cannot run here: {why}")
            del targets[name]
    return lines


def round_of(name: str, target: object, seed: int, cases: int) -> list[str]:
    """Runs one; the command that repeats it if it fails."""
    try:
        target.run(seed, cases)
    except Exception:
        command = f"python tests/fuzz {name} --seed {seed} --cases {cases}"
        print(f"{traceback.format_exc()}\nTo try it again: {command}", flush=True)
        return [command]
    return []


if __name__ == "__main__":
    sys.exit(main())
