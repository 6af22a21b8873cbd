"""A handler, and functions around it, that commit the faults of a schedule; pickled by value to the hosts."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import time

from headrace import SKIP, ModelHandler, PredictionResult
from headrace.core.errors import HostDiedError, PredictionCountError
from headrace.testing import hang, hang_holding_gil, hang_in_c, segfault

TIMEOUT = 1.0
"""Seconds. What hangs does so for ever, and all else but ``dawdle`` takes no time, so a busy machine is no matter."""


def refuse():
    raise ValueError("refused")


def want_memory():
    raise MemoryError("wanting")


def dawdle():
    """Takes part of the time limit: several of these in one batch exceed it, and none does alone."""
    time.sleep(0.4 * TIMEOUT)


RAISING = {"refuse": (refuse, ValueError), "want memory": (want_memory, MemoryError)}
LETHAL = {
    "killed": functools.partial(signal.raise_signal, signal.SIGKILL),
    "exit": functools.partial(os._exit, 3),
    "sys.exit": functools.partial(sys.exit, 4),
    "abort": os.abort,
    "segfault": segfault,
}
ENDLESS = {
    "hang": hang,
    "hang in C": hang_in_c,
    "hang holding the GIL": hang_holding_gil,
    "stopped": functools.partial(signal.raise_signal, signal.SIGSTOP),
}
DAWDLE, MISCOUNT, LOSE, SKIPPED = "dawdle", "miscount", "lose the device", "skipped"

DEEDS = {name: deed for name, (deed, _) in RAISING.items()} | LETHAL | ENDLESS | {DAWDLE: dawdle}
DESERTS = {
    **{name: error for name, (_, error) in RAISING.items()},
    **dict.fromkeys(LETHAL, HostDiedError),
    **dict.fromkeys(ENDLESS, TimeoutError),
    LOSE: HostDiedError,
    MISCOUNT: PredictionCountError,
}
"""With what an element fails that has such a fault; of the others none fails."""


def commit(fault, device):
    """Does what the fault of that name is; None: works on the device, as all do."""
    device.use()
    if fault == LOSE:
        device.lose()
    DEEDS.get(fault, bool)()


class Weights:
    """A model whose buffer the machine can share."""

    def __init__(self, factor):
        self.factor = factor

    def __reduce_ex__(self, protocol):
        return Weights, (pickle.PickleBuffer(self.factor),)


def number(value):
    """Of an element, at whatever place of its way: it may have a key, and be a prediction."""
    while isinstance(value, tuple) and not hasattr(value, "example"):
        value = value[1]
    return getattr(value, "example", value)


class Minefield(ModelHandler):
    """Doubles, and commits the fault of each example that has one, in the order of the batch.

    Batches of more examples than a ``crowd`` hang; of more than it has ``room`` for raise MemoryError.
    """

    def __init__(self, faults, device, crowd=None, room=None, **options):
        super().__init__(**options)
        self._faults = faults
        self._device = device
        self._crowd = crowd
        self._room = room

    def load_model(self):
        self.loaded = True
        return Weights(bytearray(b"\2" * 4096))

    def run_inference(self, batch, model, inference_args=None):
        return [PredictionResult(one, double) for one, double in zip(batch, self._doubled(batch, model), strict=False)]

    def run_columns(self, columns, model, inference_args=None):
        return self._doubled(columns, model)

    def _doubled(self, batch, model):
        assert self.loaded
        if self._crowd is not None and len(batch) > self._crowd:
            hang()
        if self._room is not None and len(batch) > self._room:
            raise MemoryError(f"{len(batch)} are too many")
        faults = [self._faults.get(one) for one in batch]
        for fault in faults:
            commit(fault, self._device)
        doubled = [
            SKIP if fault == SKIPPED else model.factor[0] * one for one, fault in zip(batch, faults, strict=True)
        ]
        return doubled[: -1 if MISCOUNT in faults else None]


class Mine:
    """As a function for pre- or postprocessing: gives back what it is given, once it has committed its fault."""

    def __init__(self, faults, device):
        self._faults = faults
        self._device = device

    def __call__(self, value):
        fault = self._faults.get(number(value))
        commit(fault, self._device)
        return SKIP if fault == SKIPPED else value
