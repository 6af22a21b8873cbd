"""Any mixture of imports and uses: what runs before the move runs after it, and means Headrace's names."""

import types

import apache_beam.ml.inference.onnx_inference
import apache_beam.ml.inference.sklearn_inference
import apache_beam.ml.inference.utils  # noqa: F401 - what the sources take for imported
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.migrate.source import migrate_source

USES = {
    "import apache_beam": ["apache_beam.ml.inference.base.RunInference", "apache_beam.Map"],
    "import apache_beam as beam": ["beam.ml.inference.base.KeyedModelHandler", "beam.Create"],
    "import apache_beam.ml.inference": ["apache_beam.ml.inference.RunInference"],
    "import apache_beam.ml.inference.base": ["apache_beam.ml.inference.base.PredictionResult", "apache_beam.ParDo"],
    "import apache_beam.ml.inference.onnx_inference, os": ["apache_beam.ml.inference.base.RunInference", "os.fspath"],
    "import apache_beam.ml.inference.base as b": ["b.ModelHandler", "b.RunInference.from_callable", "b._ModelStatus"],
    "from apache_beam import ml, pvalue": ["ml.inference.utils.WatchFilePattern", "pvalue.AsIter"],
    "from apache_beam.ml import inference as inf": ["inf.base.KeyModelMapping", "inf.utils.PredictionResult"],
    "from apache_beam.ml.inference import base, RunInference as Run": ["base.ModelMetadata", "Run", "base"],
    "from apache_beam.ml.inference import sklearn_inference": ["sklearn_inference.SklearnModelHandlerNumpy"],
    "from apache_beam.ml.inference.base import (KeyT,  # é\n    _ModelStatus, RunInferenceDLQ as DLQ)": ["KeyT", "DLQ"],
    "from apache_beam.ml.inference.utils import WatchFilePattern, _convert_to_result": ["WatchFilePattern"],
}  # fmt: skip
BEAMS = ("_ModelStatus", "WatchFilePattern")
"""Names that are Beam's own in Headrace, too."""
FRAMES = [
    "{}",
    "if True:\n    {}",
    "try:\n    {}\nexcept ImportError:\n    pass",
    "import os; {}",
    "if 1: {}",
    "{}  # noqa",
]


@st.composite
def sources(draw):
    """Imports in an order, each in a frame, and uses of what they bind, at the top or in a function."""
    chosen = draw(st.lists(st.sampled_from(list(USES)), min_size=1, max_size=4, unique=True))
    uses = draw(st.lists(st.sampled_from([use for one in chosen for use in USES[one]]), min_size=1, max_size=6))
    imports = "".join(_framed(draw(st.sampled_from(FRAMES)), one) + "\n" for one in chosen)
    body = f"{imports}FOUND = [{', '.join(uses)}]\n"
    if draw(st.booleans()):
        body = "def f():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return FOUND\nFOUND = f()\n"
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return body.replace("\n", end)


def _framed(frame, statement):
    is_inline = frame in ("import os; {}", "if 1: {}")
    return frame.format(statement.replace("  # é\n    ", " ") if is_inline else statement)


def found(text):
    module = types.ModuleType("moved")
    exec(compile(text, "moved.py", "exec"), vars(module))
    return module.FOUND


@settings(max_examples=25)
@given(sources())
def test_move_keeps_the_meaning(text):
    moved = migrate_source(text)
    before, after = found(text), found(moved.text)
    assert len(before) == len(after)
    for theirs, ours in zip(before, after, strict=True):
        assert _name(ours) == _name(theirs)
        assert ours is theirs or _home(ours).startswith("headrace."), (theirs, ours)
        is_moved = _home(theirs).startswith("apache_beam.ml.inference") and _name(theirs) not in BEAMS
        assert not is_moved or _home(ours).startswith("headrace."), (theirs, ours)
    again = migrate_source(moved.text)
    assert again.text == moved.text


def _name(found):
    return "base" if isinstance(found, types.ModuleType) else found.__name__


def _home(found):
    return found.__name__ + "." if isinstance(found, types.ModuleType) else found.__module__
