"""Devices that are written out."""

from __future__ import annotations

import pytest

from headrace.migrate.source import migrate_source

IMPORT = "from apache_beam.ml.inference.pytorch_inference import PytorchModelHandlerTensor as Handler\n"


@pytest.mark.parametrize("device", ["CPU", "gpu", "cuda:0", "cuda", "mps", "xpu:1"])
def test_devices_are_accepted(device):
    assert migrate_source(f"{IMPORT}Handler(device={device!r})\n").findings == ()


@pytest.mark.parametrize("device", ["gpu0", "", "T4"])
def test_what_names_no_device_is_found(device):
    (finding,) = migrate_source(f"{IMPORT}Handler(device={device!r})\n").findings
    assert finding.message.startswith(f"device={device!r} names no device: give 'CPU', 'GPU' or")
    assert (finding.line, finding.column, finding.needs_person) == (2, 16, True)


def test_each_text_of_a_choice_is_a_device():
    choices = "'T4' if there else 'CPU'", "chosen or 'T4'", "'GPU' if mode == 'T4' else choose('T4')"
    found = [migrate_source(f"{IMPORT}Handler(device={choice})\n").findings for choice in choices]
    assert [[one.column for one in findings] for findings in found] == [[16], [26], []]


def test_devices_of_others_are_left_alone():
    assert migrate_source(f"{IMPORT}Other(device='T4')\nHandler(device=chosen, model='T4')\n").findings == ()
