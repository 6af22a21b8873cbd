"""A few cases of each fuzzer, the same ones each time; those of streams on the direct runner of this process."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.large


@pytest.fixture(autouse=True)
def targets(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER), str(FOLDER / "targets")])


@pytest.mark.parametrize(
    ("target", "cases"), [("bundles", 200), ("faults", 10), ("jobs", 12), ("parquet", 60), ("readers", 300)]
)
def test_what_goes_in_comes_out(target, cases):
    importlib.import_module(target).run(1, cases)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_element_of_a_stream_comes_out_once_where_it_belongs(seed):
    importlib.import_module("streams").run(seed, 4, on_prism=False)


def test_missing_go_is_reported_in_a_line(monkeypatch, tmp_path, capsys):
    streams = importlib.import_module("streams")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(streams.prism, "prism", partial(streams.prism.prism, tmp_path))
    monkeypatch.setattr(sys, "argv", ["fuzz", "streams", "--cases", "1"])
    assert runpy.run_path(str(FOLDER / "__main__.py"))["main"]() == 1
    assert re.fullmatch(r"streams cannot run here: .* apt-get install golang .*\n", capsys.readouterr().out)
