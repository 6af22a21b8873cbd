"""For tests of handlers: a clock, fake and faulty handlers, the suite that every handler passes, and simulated runs.

::

    fakes.py      FakeClock, and handlers that work; faults.py: what fails, hangs, or kills its process
    contract.py   HandlerContract, the suite (contract_tools.py: its parts)
    simulation.py simulate, which predicts what a run will take

Only ``HandlerContract`` needs pytest (the extra ``test``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.testing.contract_tools import nearly_equal
from headrace.testing.fakes import DoublingHandler, FakeClock, LoadCountingHandler, SlowHandler
from headrace.testing.faults import (
    BrokenGeneratorHandler,
    BrokenLoadHandler,
    DeviceLosingHandler,
    FakeDevice,
    FaultyFunction,
    FaultyHandler,
    FaultyLoadHandler,
    MemoryHungryHandler,
    MiscountingHandler,
    NoneHandler,
    PoisonHandler,
    eat_memory,
    hang,
    hang_holding_gil,
    hang_in_c,
    segfault,
)

if TYPE_CHECKING:
    from headrace.testing.contract import HandlerContract
    from headrace.testing.simulation import simulate

__all__ = [
    "BrokenGeneratorHandler",
    "BrokenLoadHandler",
    "DeviceLosingHandler",
    "DoublingHandler",
    "FakeClock",
    "FakeDevice",
    "FaultyFunction",
    "FaultyHandler",
    "FaultyLoadHandler",
    "HandlerContract",
    "LoadCountingHandler",
    "MemoryHungryHandler",
    "MiscountingHandler",
    "NoneHandler",
    "PoisonHandler",
    "SlowHandler",
    "eat_memory",
    "hang",
    "hang_holding_gil",
    "hang_in_c",
    "nearly_equal",
    "segfault",
    "simulate",
]


_LAZY = {
    "HandlerContract": "headrace.testing.contract",  # only this part needs pytest
    "simulate": "headrace.testing.simulation",  # tests of handlers need no runtime
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
