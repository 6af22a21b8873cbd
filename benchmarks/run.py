"""Compares Headrace's RunInference with Beam's own: ``python benchmarks/run.py``; README.md explains it."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
from measure import compare

import machine

WORKLOADS = (
    "tiny",
    "transformer",
    "docstrings",
    "padding",
    "overlap",
    "columnar",
    "files",
    "adaptive",
    "crossing",
    "keyed",
    "isolated",
    "roundtrip",
    "recovery",
    "casualties",
    "bad_rows",
    "sharing_classifier",
    "sharing_transformer",
    "sharing_copies",
    "sharing_recovery",
    "timestamps",
    "lateness",
    "imports",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs workloads, prints their pages and writes them."""
    options = _parse(argv)
    logging.getLogger().setLevel(logging.ERROR)  # Beam logs much about each pipeline
    _limit_threads(options.threads)
    for name in options.only:
        page, data = _run(name, options)
        print(page, end="\n\n", flush=True)
        if options.out:
            report.write(options.out, name, page, data)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="which workloads; all")
    parser.add_argument("--repeats", type=int, help="runs of each side that count; 7, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; measures nothing")
    parser.add_argument("--prism", type=Path, help="Prism's binary, for the workload lateness, which is else left out")
    parser.add_argument("--threads", type=int, help="threads of PyTorch, for both sides; one for each core")
    parser.add_argument("--out", type=Path, help="folder to write to; results beside this file, none with --quick")
    options = parser.parse_args(argv)
    options.only = options.only or [name for name in WORKLOADS if options.prism or name != "lateness"]
    if options.prism:
        os.environ["HEADRACE_BENCHMARK_PRISM"] = str(options.prism.absolute())
    elif "lateness" in options.only:
        parser.error("lateness needs --prism: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0")
    options.repeats = options.repeats or (2 if options.quick else 7)
    options.out = options.out or (None if options.quick else Path(__file__).parent / "results")
    return options


def _run(name: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    environment = machine.describe()
    workload = importlib.import_module(f"workloads.{name}")
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(workload, "facts"):
            facts = list(workload.facts(Path(folder), options.repeats, quick=options.quick))
            about = [getattr(workload, "ABOUT", ""), workload.remarks(facts) if hasattr(workload, "remarks") else ""]
            page = report.render_facts(workload.TITLE, "\n\n".join(filter(None, about)), facts, environment)
            return page, {"title": workload.TITLE, "machine": environment, "facts": facts}
        cases = workload.cases(Path(folder), quick=options.quick)
        comparisons = [compare(case, options.repeats, _tell) for case in cases]
    title = f"{workload.TITLE}{' (quick: a fraction of it)' if options.quick else ''}"
    return (
        report.render_comparisons(title, comparisons, environment),
        report.as_data(title, comparisons, environment),
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _limit_threads(threads: int | None) -> None:
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes started later
        import torch  # noqa: PLC0415 - only on request

        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
