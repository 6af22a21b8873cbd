"""A few cases of the fuzzer of bundles, the same ones each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "targets"))

import bundles

pytestmark = pytest.mark.large


def test_every_element_has_the_outcome_it_deserves():
    bundles.run(1, 200)
