"""Beam's own suite for its handler of Anthropic's models, on Headrace's handler and transform."""

from __future__ import annotations

import atexit
import importlib
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import apache_beam.ml.inference.base as incumbent
import pytest

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore")]

MOVED = {
    "apache_beam.ml.inference.anthropic_inference": "headrace.handlers.anthropic_inference",
    "from apache_beam.ml.inference.base import PredictionResult": "from headrace import PredictionResult",
    "from apache_beam.ml.inference.base import RunInference": "from headrace.beam import RunInference",
}


def beams_tests():
    """Beam's test module, importing from Headrace; a file, as workers may import it, too."""
    source = Path(incumbent.__file__).with_name("anthropic_inference_test.py").read_text()
    for theirs, ours in MOVED.items():
        assert theirs in source
        source = source.replace(theirs, ours)
    assert not re.search(r"apache_beam\.ml", source)
    folder = Path(tempfile.mkdtemp(prefix="beams_anthropic"))
    atexit.register(shutil.rmtree, folder)
    (folder / "beams_anthropic_test.py").write_text(source)
    sys.path.append(str(folder))
    return importlib.import_module("beams_anthropic_test")


for _name, _suite in vars(beams_tests()).items():
    if isinstance(_suite, type) and issubclass(_suite, unittest.TestCase):
        globals()[_name] = _suite
del _suite  # pytest would collect it a second time
