"""What ``headrace simulate`` predicts of runs that take seconds, beside what they take."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import turns
from elsewhere.quota_server import LATENCY_SECS
from goals import Goal, interval, of

from headrace.testing import simulate
from workloads.remote import counted, serving

TITLE = "What headrace simulate predicts, and what runs take"

ABOUT = """\
Runs of `headrace run` over a file of JSON lines, with models that sleep, so that it is known what a batch and a load
take; or with an endpoint of the quota server. Seconds are from the first load to the end of the last batch, or from the
first request to the last answer: what the process takes to start is no question of the policies. The six models
by key, of 60 MB each, have batches of 32 and a limit of 280 MB; their keys come in the order of the simulation. Other
work on the machine makes runs longer, not the prediction."""

_COUNTED = ("loads", "batches", "refused")
_MODELS = [f"m{number}" for number in range(6)]
_LINE = {"fixed": 0.1, "per_row": 0.002}
_MODEL = {"load_seconds": 1.0, "batch_seconds": _LINE}
_KEYED = {
    "load_seconds": 0.5,
    "memory_gb": 0.06,
    "batch_seconds": _LINE,
    "min_batch_size": 32,
    "max_batch_size": 32,
}
_QUOTA, _CHANCE = 200, 0.02
_ENDPOINT = {
    "latency_seconds": LATENCY_SECS,
    "quota_per_second": _QUOTA,
    "burst_seconds": 0.1,
    "refused_at_random": _CHANCE,
}
_KEYS = {"route": "keyed", "zipf": 1.0, "models": dict.fromkeys(_MODELS, _KEYED)}
PLANS: Mapping[str, Mapping[str, Any]] = {
    "one model": {"rows": 6_000, "models": {"m": _MODEL}},
    "one model, two workers": {
        "rows": 12_000,
        "bytes_per_row": 24,
        "machines": {"workers": 2},
        "models": {"m": _MODEL},
    },
    "six models by key, memory for three": {
        "rows": 4_000,
        "machines": {"memory_gb": 0.28, "memory_per_worker_gb": 0.03},
        **_KEYS,
    },
    "a quota of 200/s": {"rows": 3_000, "endpoints": {"e": _ENDPOINT}},
}

GOALS = [
    Goal(f"Simulated, {name}: seconds, predicted / measured", of(name, "ratio"), at_least=0.9, at_most=1.1)
    for name in PLANS
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each plan."""
    for name, whole in PLANS.items():
        plan = {**whole, "rows": whole["rows"] // (20 if quick else 1)}
        found = simulate(plan)
        predicted = {what: sum(getattr(found, what).values()) for what in _COUNTED}
        runs = [_run(folder, plan) for _ in range(repeats)]
        for run in runs:
            run["ratio"] = found.seconds / run["seconds"]
        yield {
            "run": name,
            "seconds, predicted": f"{found.seconds:.2f}",
            "measured": str(interval([run["seconds"] for run in runs])),
            **{what: f"{number:g}" for what, number in predicted.items()},
            **{f"{what}, measured": ", ".join(f"{run[what]:g}" for run in runs) for what in _COUNTED},
            "runs": runs,
        }


def _run(folder: Path, plan: Mapping[str, Any]) -> dict[str, float]:
    """A whole run: the seconds from its first load or request to its last batch or answer, and what it counted."""
    rows, log, room = folder / "rows.jsonl", folder / "log", folder / "room"
    keys = random.Random("0 0").choices(_MODELS, [1 / (rank + 1) for rank in range(len(_MODELS))], k=plan["rows"])
    rows.write_text("".join(f'{{"k": "{key}", "n": {number}}}\n' for number, key in enumerate(keys)))
    log.write_text("")
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    words = ["run", rows, "--columns", "n", "--output", folder / "out.jsonl", "--no-progress"]
    words += ["--workers", str(plan.get("machines", {}).get("workers", 1))]
    if "endpoints" in plan:
        with serving(_QUOTA, 10**9, _CHANCE) as port:
            _headrace(words, "Remote", {"port": port})
            found = counted(port)
        return {"seconds": found["last"] - found["first"], "loads": 0, "batches": 0, "refused": found["refused"]}
    model = next(iter(plan["models"].values()))
    given = {**_LINE, "load_seconds": model["load_seconds"], "log": log}
    if plan.get("route") == "keyed":
        given |= {"models": len(_MODELS), "folder": room, "batch_size": model["max_batch_size"]}
        given |= {"megabytes": round(model["memory_gb"] * 1000)}
        given |= {"room_megabytes": round(plan["machines"]["memory_gb"] * 1000)}
        _headrace([*words, "--key", "k"], "ByKey", given)
    else:
        _headrace(words, "Asleep", given)
    lines = [line.split() for line in log.read_text().splitlines()]
    counts = Counter(what for what, _ in lines)
    times = [float(when) for _, when in lines]
    return {"seconds": max(times) - min(times), "loads": counts["load"], "batches": counts["batch"], "refused": 0}


def _headrace(words: Sequence[str | Path], handler: str, given: Mapping[str, Any]) -> None:
    parameters = [word for name in given for word in ("--handler-arg", f"{name}={given[name]}")]
    turns.take_turns({handler: turns.headrace(*words, "--handler", f"asleep:{handler}", *parameters)}, 1)
