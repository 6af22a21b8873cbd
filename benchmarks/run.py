"""Compares Headrace's RunInference with Beam's own: ``python benchmarks/run.py``; README.md explains it."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import goals
import report
from measure import compare

import machine

WORKLOADS = (
    "tiny",
    "transformer",
    "docstrings",
    "padding",
    "texts",
    "overlap",
    "columnar",
    "files",
    "mixed_tables",
    "frames",
    "workers",
    "images",
    "adaptive",
    "crossing",
    "keyed",
    "isolated",
    "isolated_process",
    "roundtrip",
    "simulated",
    "quote",
    "recovery",
    "casualties",
    "bad_rows",
    "remote",
    "remote_changes",
    "remote_queue",
    "remote_refusals",
    "chat_clients",
    "generation",
    "generation_copies",
    "sharing_classifier",
    "sharing_transformer",
    "sharing_loading",
    "sharing_copies",
    "sharing_recovery",
    "timestamps",
    "lateness",
    "imports",
)

RESULTS = Path(__file__).parent / "results"
README = RESULTS.with_name("README.md")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs workloads, prints their pages and writes them; exits with 1, at the end, if one of them failed."""
    options = _parse(argv)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' processes find their modules compiled
    logging.getLogger().setLevel(logging.ERROR)  # Beam logs much about each pipeline
    _limit_threads(options.threads)
    failed = [name for name in options.only if not _succeeds(name, options)]
    if options.table or options.out == RESULTS:
        print(table := goals.table(collect(), options.out))
    if options.out == RESULTS:
        README.write_text(goals.with_table(README.read_text(encoding="utf-8"), table), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _succeeds(name: str, options: argparse.Namespace) -> bool:
    """Runs a workload; after an error, which is printed, the others go on: all of them take hours."""
    try:
        page, data = _run(name, options)
    except Exception:
        traceback.print_exc()
        return False
    print(page, end="\n\n", flush=True)
    if options.out:
        report.write(options.out, name, page, data)
    return True


def collect() -> dict[str, Sequence[goals.Goal]]:
    """The goals of all workloads, by their names."""
    return {name: getattr(importlib.import_module(f"workloads.{name}"), "GOALS", ()) for name in WORKLOADS}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="which workloads; all")
    parser.add_argument("--repeats", type=int, help="runs of each side that count; 7, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; measures nothing")
    parser.add_argument("--table", action="store_true", help="measures nothing; table of the goals, from the results")
    parser.add_argument("--threads", type=int, help="threads of PyTorch, for both sides; one for each core")
    parser.add_argument("--out", type=Path, help="folder to write to; results beside this file, none with --quick")
    for name, options in _OF_WORKLOADS.items():
        parser.add_argument(f"--{name}", **options)
    options = parser.parse_args(argv)
    for name in _OF_WORKLOADS:
        _export(name, getattr(options, name))
    if not options.prism and "lateness" in (options.only or ()):
        parser.error("lateness needs --prism: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0")
    every = [name for name in WORKLOADS if options.prism or name != "lateness"]
    options.only = [] if options.table else options.only or every
    options.repeats = options.repeats or (2 if options.quick else 7)
    is_partial = (options.quick or options.variants) and not options.table
    options.out = options.out or (None if is_partial else RESULTS)
    return options


def _absolute(text: str) -> Path:
    """A path for processes that run elsewhere; a link stays one, for an environment's Python is one."""
    return Path(text).absolute()


_OF_WORKLOADS: dict[str, dict[str, Any]] = {
    "prism": {"type": _absolute, "help": "Prism's binary, for the workload lateness, which is else left out"},
    "ray": {"type": _absolute, "help": "Python with Ray Data; that of .venv-ray, which make ray makes"},
    "daft": {"type": _absolute, "help": "Python with Daft; that of .venv-daft, which make daft makes"},
    "variants": {"nargs": "+", "help": "sharing_*: only these, such as private shared; writes nothing without --out"},
    "limit": {"type": float, "help": "sharing_*: seconds after which no further round is begun; 600"},
    "models": {"type": Path, "help": "sharing_transformer: keeps its model of 3 GB here, or finds it"},
}
"""Options that reach workloads through the environment."""


def _export(name: str, value: Any) -> None:
    """To ``HEADRACE_BENCHMARK_<NAME>``; several values in lines."""
    if value is not None:
        text = "\n".join(value) if isinstance(value, list) else str(value)
        os.environ[f"HEADRACE_BENCHMARK_{name.upper()}"] = text


def _run(name: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The page and the data."""
    environment = machine.describe()
    workload = importlib.import_module(f"workloads.{name}")
    data: dict[str, Any] = {"title": workload.TITLE, "machine": environment}
    about = [getattr(workload, "ABOUT", "")]
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(workload, "facts"):
            data["facts"] = list(workload.facts(Path(folder), options.repeats, quick=options.quick))
            about += [workload.remarks(data["facts"])] if hasattr(workload, "remarks") else []
            body = report.table(data["facts"])
        else:
            cases = workload.cases(Path(folder), quick=options.quick)
            comparisons = [compare(case, options.repeats, _tell) for case in cases]
            data["cases"] = report.as_data(comparisons)
            body = report.render_comparisons(comparisons)
    title = f"{workload.TITLE}{' (quick: a fraction of it)' if options.quick else ''}"
    about.append(goals.render(getattr(workload, "GOALS", ()), data))
    return report.page(title, [*about, body], environment), data


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _limit_threads(threads: int | None) -> None:
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes started later
        import torch  # noqa: PLC0415 - only on request

        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
