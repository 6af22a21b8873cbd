"""A few stream schedules, the same ones each time, on the direct runner of this process; `make fuzz` has Prism."""

from __future__ import annotations

import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import streams

pytestmark = pytest.mark.large


@pytest.mark.parametrize("seed", [1, 2])
def test_each_element_comes_out_once_where_it_belongs(seed):
    streams.run(seed, 4, on_prism=False)


def test_missing_go_is_reported_in_a_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(streams.prism, "prism", partial(streams.prism.prism, tmp_path))
    monkeypatch.setattr(sys, "argv", ["fuzz", "streams", "--cases", "1"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert runpy.run_path(str(Path(__file__).parent / "__main__.py"))["main"]() == 1
    assert re.fullmatch(r"streams cannot run here: .* apt-get install golang .*\n", capsys.readouterr().out)
