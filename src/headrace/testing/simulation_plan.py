"""What ``headrace simulate`` is told: models, machines and endpoints, as tables of numbers that are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from typing import Any, TypeVar

from headrace.core.config import require
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean

TableT = TypeVar("TableT")
GB = 10**9
_SUBTABLES = ("machines", "preemptions", "models", "endpoints")


def _number(text: str, default: Any = MISSING, *, least: float = 0, whole: bool = False, above: bool = False) -> Any:
    """A field that is a number: what it means, and what it may be; ``above``: more than ``least``."""
    return field(default=default, metadata={"text": text, "least": least, "whole": whole, "above": above})


def _choice(text: str, *choices: str) -> Any:
    """A field that is one of some words, the first by default."""
    return field(default=choices[0], metadata={"text": text, "choices": choices})


def _other(text: str, parse: Any, default: Any = MISSING) -> Any:
    """A field that a function of its value and its name parses."""
    return field(default=default, metadata={"text": text, "parse": parse})


@dataclass(frozen=True)
class BatchSeconds:
    """A batch's time by its size: straight lines through the points given, the last one prolonged."""

    points: Sequence[tuple[float, float]]

    def __call__(self, size: float) -> float:
        """Seconds for a batch of so many rows."""
        pairs = [*pairwise(self.points)]
        (x1, y1), (x2, y2) = next((pair for pair in pairs if size <= pair[1][0]), pairs[-1])
        return max(0.0, y1 + (y2 - y1) * (size - x1) / (x2 - x1))


def _batch_seconds(value: Any, where: str) -> BatchSeconds:
    if isinstance(value, Mapping):
        line = _parsed(_BatchTime, value, where)
        return BatchSeconds([(0.0, line.fixed), (1.0, line.fixed + line.per_row)])
    try:
        points = sorted((float(size), float(seconds)) for size, seconds in value)
        if len({size for size, _ in points}) == len(points) > 1 and all(0 <= y < math.inf for _, y in points):
            return BatchSeconds(points)
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(
        f"{where} must be {{ fixed = SECONDS, per_row = SECONDS }}, or at least two sizes with their seconds, "
        f"[[1, 0.02], [64, 0.3]], not {value!r}."
    )


def _hours(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(_is_number(one) and one >= 0 for one in value):
        raise ConfigurationError(f"{where} must be a list of hours, as [0.5, 2], not {value!r}.")
    return tuple(sorted(value))


@dataclass(frozen=True, kw_only=True)
class _BatchTime:
    fixed: float = _number("seconds for any batch")
    per_row: float = _number("seconds more for each row")


@dataclass(frozen=True, kw_only=True)
class SimulatedModel:
    """A model that the workers load; an endpoint that they ask is a ``SimulatedService``."""

    batch_seconds: BatchSeconds = _other("seconds of a batch, measured by headrace doctor --rows", _batch_seconds)
    load_seconds: float = _number("seconds to load it")
    memory_gb: float = _number("GB that a loaded copy takes", 0.0)
    share: float | None = _number("its weight among the models that share the rows", None)
    min_batch_size: int = _number("rows", 1, least=1, whole=True)
    max_batch_size: int = _number("rows", 10_000, least=1, whole=True)

    @property
    def nbytes(self) -> int:
        """Bytes that a loaded copy takes."""
        return round(self.memory_gb * GB)


@dataclass(frozen=True, kw_only=True)
class SimulatedService:
    """An endpoint: each row is a request."""

    latency_seconds: float = _number("seconds to answer a request", above=True)
    quota_per_second: float = _number("requests that it takes a second", math.inf, above=True)
    burst_seconds: float = _number("for how many seconds what is left of the quota is kept", 1.0)
    refused_at_random: float = _number("the share of requests that it refuses whatever they are", 0.0)
    at_once: int = _number("requests that it works on at a time; 0: any number", 0, whole=True)
    price_per_1000_rows: float = _number("money for 1,000 answers", 0.0)
    share: float | None = _number("its weight among the models that share the rows", None)


@dataclass(frozen=True, kw_only=True)
class SimulatedMachines:
    """Machines, all alike."""

    count: int = _number("machines", 1, least=1, whole=True)
    workers: int = _number("worker processes of each machine", 1, least=1, whole=True)
    cores: int | None = _number("cores; with fewer than workers, batches take longer", None, least=1, whole=True)
    memory_gb: float = _number("GB of each machine", math.inf, above=True)
    memory_per_worker_gb: float = _number("GB of each worker without models", 0.6)
    start_seconds: float = _number("seconds from the start of a machine to a worker's first row or load", 0.0)
    price_per_hour: float = _number("money for a machine for an hour", 0.0)


@dataclass(frozen=True, kw_only=True)
class Preemptions:
    """Machines that are taken away; each comes back, and what its workers were at is done again."""

    per_hour: float = _number("how often that happens to a machine in an hour", 0.0)
    at_hours: tuple[float, ...] = _other("when it happens, to one machine after the other", _hours, ())
    restart_seconds: float = _number("seconds until the workers of another machine begin", 60.0)


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """A run: what is to be done, and with what."""

    rows: int = _number("rows in all", least=1, whole=True)
    rows_per_bundle: int | None = _number("rows that a worker takes at a time", None, least=1, whole=True)
    seconds_per_row: float = _number("seconds a row takes beside the model: read, preprocess, write", 0.0)
    bytes_per_row: int = _number(
        "bytes of a row, in the file and while it waits for its batch", 1000, least=1, whole=True
    )
    route: str = _choice("whether each row goes through every model, or to one of them by its key", "all", "keyed")
    zipf: float | None = _number("the model of rank r gets a share as 1 / r ** zipf", None)
    max_models: int | None = _number("models that a worker holds at a time", None, least=1, whole=True)
    placement: str = _choice("where models live", "process", "machine", "auto")
    machines: SimulatedMachines = field(default_factory=SimulatedMachines)
    preemptions: Preemptions = field(default_factory=Preemptions)
    models: Mapping[str, SimulatedModel] = field(default_factory=dict)
    endpoints: Mapping[str, SimulatedService] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Workers of all machines."""
        return self.machines.count * self.machines.workers

    def share_of(self, name: str) -> float | None:
        """The weight that a model or an endpoint was given."""
        return self.models[name].share if name in self.models else self.endpoints[name].share

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of the rows that each model and endpoint gets; 1 for each if a row goes through all of them."""
        names = [*self.models, *self.endpoints]
        if self.route == "all":
            return dict.fromkeys(names, 1.0)
        ranks = {name: 1 / (rank + 1) ** (self.zipf or 0.0) for rank, name in enumerate(names)}
        given = {name: self.share_of(name) for name in names}
        weights = {name: ranks[name] if share is None else share for name, share in given.items()}
        return {name: weight / (sum(weights.values()) or 1.0) for name, weight in weights.items()}


def parse_plan(tables: Mapping[str, Any]) -> SimulatedRun:
    """Checks a plan, as TOML gives it.

    Raises:
        ConfigurationError: a key is unknown, missing or wrong; the message names it, and says what to give.
    """
    given = dict(tables)
    subtables = {name: given.pop(name) for name in _SUBTABLES if name in given}
    for name, table in subtables.items():
        require(isinstance(table, Mapping), f"{name} must be a table, [{name}], not {table!r}.")
    plan = _parsed(
        SimulatedRun,
        given,
        "",
        machines=_parsed(SimulatedMachines, subtables.get("machines", {}), "machines"),
        preemptions=_parsed(Preemptions, subtables.get("preemptions", {}), "preemptions"),
        models=_named(SimulatedModel, subtables.get("models", {}), "models"),
        endpoints=_named(SimulatedService, subtables.get("endpoints", {}), "endpoints"),
    )
    _check(plan)
    return plan


def _check(plan: SimulatedRun) -> None:
    names = [*plan.models, *plan.endpoints]
    require(bool(names), "the plan has neither models nor endpoints: add a table [models.NAME] or [endpoints.NAME].")
    both = next(iter(plan.models.keys() & plan.endpoints.keys()), None)
    require(both is None, f"models.{both} and endpoints.{both} have one name: rename one of them.")
    for name, model in plan.models.items():
        sizes = model.min_batch_size, model.max_batch_size
        require(sizes[0] <= sizes[1], f"models.{name}: min_batch_size {sizes[0]} is above max_batch_size {sizes[1]}.")
    for name, one in plan.endpoints.items():
        share = one.refused_at_random
        require(share <= 0.5, f"endpoints.{name}.refused_at_random must be at most 0.5, not {share}.")
    if plan.route == "all":
        stray = [name for name in ("zipf", "max_models") if getattr(plan, name) is not None]
        stray += [f"{name}.share" for name in names if plan.share_of(name) is not None]
        require(not stray, f'{", ".join(stray)}: for rows that go to one of the models each; add route = "keyed".')
    else:
        require(any(plan.shares.values()), "no model has a share: give one of them a share above 0.")


def _named(cls: type[TableT], tables: Mapping[str, Any], where: str) -> dict[str, TableT]:
    return {name: _parsed(cls, table, f"{where}.{name}") for name, table in tables.items()}


def _parsed(cls: type[TableT], table: Any, where: str, **tables: Any) -> TableT:
    """A dataclass of the table's values, which its fields check."""
    require(isinstance(table, Mapping), f"{where} must be a table, [{where}], not {table!r}.")
    known = {one.name: one for one in fields(cls) if one.metadata}  # type: ignore[arg-type]
    values = {}
    for name, value in table.items():
        path = f"{where}.{name}" if where else name
        places = [*known, *(() if where else _SUBTABLES)]
        require(name in known, f"there is no key {path!r}{did_you_mean(name, places)} Known here: {', '.join(places)}.")
        values[name] = _value(known[name].metadata, value, path)
    for name, one in known.items():
        path = f"{where}.{name}" if where else name
        needed = one.default is MISSING and name not in values
        require(not needed, f"the plan lacks {path}: {one.metadata['text']}.")
    return cls(**values, **tables)


def _value(rule: Mapping[str, Any], value: Any, path: str) -> Any:
    if "parse" in rule:
        return rule["parse"](value, path)
    if "choices" in rule:
        choices = " or ".join(f'"{one}"' for one in rule["choices"])
        require(value in rule["choices"], f"{path} must be {choices} ({rule['text']}), not {value!r}.")
        return value
    kind = "a whole number" if rule["whole"] else "a number"
    bound = f"{'above' if rule['above'] else 'of at least'} {rule['least']:g}"
    right = _is_number(value) and (value > rule["least"] if rule["above"] else value >= rule["least"])
    right = right and (not rule["whole"] or isinstance(value, int))
    require(right, f"{path} must be {kind} {bound} ({rule['text']}), not {value!r}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
