"""A handler may print, flood or close its output: results are unaffected, and lines reach logging."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
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


def print_without_end(text):
    print(text, end="", flush=True)
    print(" and more", end="\n", flush=True)


def print_error(text):
    print(text, file=sys.stderr)


def write_to_descriptor_1(text):
    os.write(1, f"{text}\n".encode())


def write_from_c(text):
    libc = ctypes.CDLL(None)
    libc.puts(text.encode())
    libc.fflush(None)


def say_it_in_a_program(text):
    subprocess.run(["echo", text], check=True)


def log(text):
    logging.getLogger("talkative").warning("%s", text)


def run(speak):
    outcomes = list(predict(Talkative(speak), range(64), isolate=True, batching=BatchingConfig(32, 32)))
    assert [one.inference for one in outcomes] == [2 * n for n in range(64)]


@pytest.mark.parametrize(
    ("speak", "logger", "lines"),
    [
        (print_it, "headrace.host", ["loading", "batch 0", "batch 32"]),
        (print_without_end, "headrace.host", ["loading and more", "batch 0 and more", "batch 32 and more"]),
        (print_error, "headrace.host", ["loading", "batch 0", "batch 32"]),
        (write_to_descriptor_1, "headrace.host", ["loading", "batch 0", "batch 32"]),
        (write_from_c, "headrace.host", ["loading", "batch 0", "batch 32"]),
        (say_it_in_a_program, "headrace.host", ["loading", "batch 0", "batch 32"]),
        (log, "talkative", ["loading", "batch 0", "batch 32"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_lines_reach_logging(caplog, speak, logger, lines):
    with caplog.at_level(logging.INFO):
        run(speak)
    level = logging.WARNING if speak is log else logging.INFO
    assert [one for one in caplog.record_tuples if one[0] == logger] == [
        (logger, level, f"Talkative: {line}") for line in lines
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


@pytest.mark.parametrize("speak", [close_streams, lose_streams, close_descriptors])
def test_closed_descriptors_do_not_affect_results(speak):
    run(speak)


def flood(text):
    if text == "loading":
        return
    block = b"".join(b"%09d " % number + b"x" * 89 + b"\n" for number in range(10_000))
    for _ in range(50):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()


def test_a_flood_of_output_is_cut_and_counted(caplog):
    """Two batches print 100 MB; about 1,000 lines a second are passed on, the rest are counted."""
    with caplog.at_level(logging.INFO):
        run(flood)
    lines = [one.getMessage() for one in caplog.records if one.name == "headrace.host"]
    assert lines[0].startswith("Talkative: 000000000 xxx")
    assert any("more lines were dropped" in line for line in lines)
    passed = sum("xxx" in line for line in lines)
    dropped = sum(int(line.split()[1].replace(",", "")) for line in lines if "more lines were dropped" in line)
    assert passed + dropped == 1_000_000
