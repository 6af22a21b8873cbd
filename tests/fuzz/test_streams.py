"""A few stream schedules, the same ones each time, on the direct runner of this process; `make fuzz` has Prism."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import streams


@pytest.mark.parametrize("seed", [1, 2])
def test_each_element_comes_out_once_where_it_belongs(seed):
    streams.run(seed, 4, on_prism=False)
