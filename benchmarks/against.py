"""Compares this tree with an earlier commit: ``python benchmarks/against.py REF``; see README.md beside this file.

Each round runs a workload in a fresh process for each tree, with the same Python and libraries; which tree goes first
alternates. Both run beside the same incumbent, whose times show what the machine did meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report

import machine

HERE = Path(__file__).parent.parent
WORKLOADS = (
    "tiny", "transformer", "docstrings", "overlap", "columnar", "files", "crossing", "keyed", "isolated", "roundtrip"
)  # fmt: skip
Figures = dict[tuple[str, str, str], dict[str, list[float]]]
"""Numbers of each tree, by workload, case and figure."""


def main() -> None:
    """Runs the workloads on both trees, prints a table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ref", help="the earlier commit")
    parser.add_argument("--only", nargs="+", default=WORKLOADS, help="which workloads")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload on each tree")
    parser.add_argument("--repeats", type=int, default=2, help="repeats within a run")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; writes nothing")
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks/results", help="folder to write to")
    options = parser.parse_args()
    figures: Figures = defaultdict(lambda: defaultdict(list))
    environment = machine.describe()
    with _worktree(options.ref) as earlier:
        trees = {"before": earlier, "now": HERE}
        for workload in options.only:
            for turn in range(options.rounds):
                for name in sorted(trees, reverse=bool(turn % 2)):
                    print(f"{workload}: {turn + 1}/{options.rounds} {name}", file=sys.stderr, flush=True)
                    for case, what, numbers in _run(trees[name], workload, options):
                        figures[workload, case, what][name] += numbers
            page = _page(options.ref, figures, environment)
            if not options.quick:  # after each workload: all of them take hours
                data: dict[str, Any] = {"ref": options.ref, "machine": environment}
                data["figures"] = [[*key, numbers] for key, numbers in figures.items()]
                report.write(options.out, "against", page, data)
    print(page)


@contextmanager
def _worktree(ref: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), ref], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _run(tree: Path, workload: str, options: argparse.Namespace) -> Iterator[tuple[str, str, list[float]]]:
    """Case, figure, numbers."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "benchmarks/run.py", "--only", workload, "--repeats", str(options.repeats)]
        command += ["--out", out, *(["--quick"] if options.quick else [])]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
        data = json.loads((Path(out) / f"{workload}.json").read_text())
    for case in data.get("cases", ()):
        for side, runs in case["runs"].items():
            yield case["name"], f"{side}, s", [run["seconds"] for run in runs]
    for fact in data.get("facts", ()):
        numbers = {what: _number(value) for what, value in fact.items()}
        label = ", ".join(str(fact[what]) for what in fact if numbers[what] is None and isinstance(fact[what], str))
        yield from ((label, what, [number]) for what, number in numbers.items() if number is not None)


def _number(value: Any) -> float | None:
    """The number with which a cell begins."""
    found = re.match(r"[\d,]+(\.\d+)?(?=$|[ x%])", value) if isinstance(value, str) else None
    return float(found[0].replace(",", "")) if found else None


def _page(ref: str, figures: Figures, environment: dict[str, str]) -> str:
    lines = [
        f"# This tree beside {ref}",
        "",
        "Medians. Figures of Beam's transform and of the no-op show what the machine did meanwhile: nothing of them "
        "differs between the trees.",
        "",
        "| workload | case | figure | before | now | now / before |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (workload, case, what), numbers in figures.items():
        before, now = (statistics.median(numbers[name]) if numbers[name] else math.nan for name in ("before", "now"))
        ratio = f"{now / before:.3f}" if before else ""
        lines.append(f"| {workload} | {case} | {what} | {before:.4g} | {now:.4g} | {ratio} |")
    return "\n".join([*lines, "", *(f"- {what}: {value}" for what, value in environment.items())])


if __name__ == "__main__":
    main()
