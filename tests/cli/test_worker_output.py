"""What Beam's worker processes print is shown if it is a handler's, and left out if it is Beam's own."""

import subprocess
import sys

import pytest

from headrace.cli.worker_output import WorkerLines, without_noise

PRINTED = b"""\
WARNING:root:apitools not found, and bigquery client libraries are not available
INFO:__main__:Logging handler created.
loading weights
WARNING:__main__:No semi_persistent_directory found
  indented by the handler
WARNING:shop:old weights
INFO:shop:details
ERROR:apache_beam.runners.common:no such weights [while running 'Run']
Traceback (most recent call last):
  File "handlers.py", line 3, in load_model
KeyError: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "handlers.py", line 4, in load_model
OSError: no such weights
handlers.py:6: UserWarning: have a care
  warnings.warn("have a care")
ERROR:shop:lost
Traceback (most recent call last):
  File "handlers.py", line 9, in run_inference
ValueError: a basket
WARNING:root:of the handler
Fatal Python error: Segmentation fault
"""
SHOWN = b"""\
loading weights
  indented by the handler
WARNING:shop:old weights
handlers.py:6: UserWarning: have a care
  warnings.warn("have a care")
ERROR:shop:lost
Traceback (most recent call last):
  File "handlers.py", line 9, in run_inference
ValueError: a basket
WARNING:root:of the handler
Fatal Python error: Segmentation fault
"""


def test_lines_of_beam_are_left_out_with_their_tracebacks():
    lines = WorkerLines()
    assert b"".join(line for line in PRINTED.splitlines(keepends=True) if lines.keeps(line)) == SHOWN


def test_processes_write_through_the_filter_and_this_one_beside_it(capfd):
    with without_noise():
        subprocess.run([sys.executable, "-c", f"import os; os.write(2, {PRINTED!r})"], check=True)
        print("INFO:main:of this process", file=sys.stderr)
    print("INFO:main:later", file=sys.stderr)
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == sorted(
        [*SHOWN.decode().splitlines(), "INFO:main:of this process", "INFO:main:later"]
    )


def test_standard_error_is_restored_after_an_error(capfd):
    before = sys.stderr
    with pytest.raises(RuntimeError), without_noise():
        raise RuntimeError
    assert sys.stderr is before
