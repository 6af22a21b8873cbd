"""A handler may print, flood or close its output: results are unaffected, and lines reach logging."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from headrace import BatchingConfig, predict
from headrace.testing import DoublingHandler


class Talkative(DoublingHandler):
    """Prints something for every batch."""

    def __init__(self, speak):
        super().__init__()
        self._speak = speak

    def load_model(self):
        self._speak("loading")
        return super().load_model()

    def run_inference(self, batch, model, inference_args=None):
        self._speak(f"batch {batch[0]}")
        return super().run_inference(batch, model, inference_args)


def print_it(text):
    print(text)


def log(text):
    logging.getLogger("talkative").warning("%s", text)


def run(speak):
    outcomes = list(predict(Talkative(speak), range(64), isolate=True, batching=BatchingConfig(32, 32)))
    assert [one.inference for one in outcomes] == [2 * n for n in range(64)]


@pytest.mark.parametrize(
    ("speak", "logger", "level"), [(print_it, "headrace.host", logging.INFO), (log, "talkative", logging.WARNING)]
)
def test_lines_reach_logging(caplog, speak, logger, level):
    with caplog.at_level(logging.INFO):
        run(speak)
    assert [one for one in caplog.record_tuples if one[0] == logger] == [
        (logger, level, f"Talkative: {line}") for line in ("loading", "batch 0", "batch 32")
    ]


def close_streams(text):
    sys.stdout.close()
    sys.stderr.close()


def lose_streams(text):
    sys.stdout = sys.stderr = None


def close_descriptors(text):
    """The next files that are opened, memory for batches among them, become 1 and 2."""
    if text == "loading":
        os.close(1)
        os.close(2)


def flood(text):
    """Two batches print 2 MB."""
    if text == "loading":
        return
    block = b"".join(b"%09d " % number + b"x" * 89 + b"\n" for number in range(1_000))
    for _ in range(10):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()


@pytest.mark.parametrize("speak", [close_streams, lose_streams, close_descriptors, flood])
def test_closed_descriptors_and_floods_do_not_affect_results(speak):
    run(speak)
