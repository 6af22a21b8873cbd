"""One source: what is rewritten, what is left, and that nothing else changes."""

import pytest

from headrace.migrate.source import migrate_source

MOVES = {
    "names of base": (
        "from apache_beam.ml.inference.base import RunInference, KeyedModelHandler as Keyed  # both\n",
        "from headrace.beam import RunInference, KeyedModelHandler as Keyed  # both\n",
    ),
    "a list of several lines with its comments": (
        "from apache_beam.ml.inference.base import (  # of Beam\n    RunInference,  # runs\n    PredictionResult,\n)\n",
        "from headrace.beam import (  # of Beam\n    RunInference,  # runs\n    PredictionResult,\n)\n",
    ),
    "a name that a handler's module itself imports": (
        "from apache_beam.ml.inference.onnx_inference import OnnxModelHandlerNumpy, PredictionResult\n",
        "from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy\n"
        "from headrace.beam import PredictionResult\n",
    ),
    "modules from the package": (
        "from apache_beam.ml.inference import base, sklearn_inference as sk, RunInference\n"
        "base.ModelHandler, sk.SklearnModelHandlerNumpy, RunInference\n",
        "from headrace import beam as base\nfrom headrace.handlers import sklearn_inference as sk\n"
        "from headrace.beam import RunInference\nbase.ModelHandler, sk.SklearnModelHandlerNumpy, RunInference\n",
    ),
    "a module under a name, in a block on one line": (
        "if True: import apache_beam.ml.inference.base as base, os\n",
        "if True: import os; import headrace.beam as base\n",
    ),
    "the package under a name": (
        "from apache_beam.ml import inference\n\nx = inference.RunInference(inference.base.KeyedModelHandler(1))\n"
        "y = inference.sklearn_inference.SklearnModelHandlerNumpy\n",
        "import headrace.beam\nimport headrace.handlers.sklearn_inference\n\n"
        "x = headrace.beam.RunInference(headrace.beam.KeyedModelHandler(1))\n"
        "y = headrace.handlers.sklearn_inference.SklearnModelHandlerNumpy\n",
    ),
    "attributes of beam": (
        "import apache_beam as beam  # Beam\n\nbeam.Map(print)\nbeam.ml.inference.base.RunInference(1)\n",
        "import apache_beam as beam  # Beam\nimport headrace.beam\n\nbeam.Map(print)\nheadrace.beam.RunInference(1)\n",
    ),
    "attributes of apache_beam, which nothing else needs": (
        "import apache_beam.ml.inference.base\n\nx = apache_beam.ml.inference.base.RunInference(1)\n",
        "import headrace.beam\n\nx = headrace.beam.RunInference(1)\n",
    ),
    "attributes of apache_beam, which is used": (
        "import apache_beam.ml.inference.base\n\nx = apache_beam.Map(apache_beam.ml.inference.base.RunInference)\n",
        "import apache_beam.ml.inference.base\nimport headrace.beam\n\n"
        "x = apache_beam.Map(headrace.beam.RunInference)\n",
    ),
    "an import that only loads the package for beam, and one of another package": (
        "import apache_beam as beam\nimport apache_beam.ml.inference.base\nimport apache_beam.ml.transforms.base\n\n"
        "beam.ml.inference.base.RunInference(beam.ml.transforms.base)\n",
        "import apache_beam as beam\nimport headrace.beam\nimport apache_beam.ml.transforms.base\n\n"
        "headrace.beam.RunInference(beam.ml.transforms.base)\n",
    ),
    "an import within a function": (
        "def f():\n    import apache_beam as beam\n    from apache_beam.ml.inference.base import RunInference\n"
        "    return beam, beam.ml.inference.base.ModelHandler\n",
        "def f():\n    import apache_beam as beam\n    import headrace.beam\n"
        "    from headrace.beam import RunInference\n"
        "    return beam, headrace.beam.ModelHandler\n",
    ),
    "imports for type checkers, in their own block": (
        "from typing import TYPE_CHECKING\nimport apache_beam as beam\nif TYPE_CHECKING:\n"
        "    from apache_beam.ml import inference\n"
        "def f(x: 'inference.base.PredictionResult', y: \"list['inference.RunInference']\"):\n"
        "    return beam.ml.inference.base.RunInference\n",
        "from typing import TYPE_CHECKING\nimport headrace.beam\nif TYPE_CHECKING:\n"
        "    import headrace.beam\n"
        "def f(x: 'headrace.beam.PredictionResult', y: \"list['headrace.beam.RunInference']\"):\n"
        "    return headrace.beam.RunInference\n",
    ),
    "ends of lines, tabs and no last one": (
        "if 1:\r\n\tfrom apache_beam.ml.inference import base, RunInference\r\n\tbase.ModelHandler",
        "if 1:\r\n\tfrom headrace import beam as base\r\n\tfrom headrace.beam import RunInference\r\n"
        "\tbase.ModelHandler",
    ),
    "a name that is taken": (
        "import apache_beam as beam\nheadrace = beam.ml.inference.base.ModelHandler\n",
        "import headrace.beam as headrace_beam\nheadrace = headrace_beam.ModelHandler\n",
    ),
    "a name that another import takes": (
        "from mine import headrace\nimport apache_beam as beam\nbeam.ml.inference.base.ModelHandler\n",
        "from mine import headrace\nimport headrace.beam as headrace_beam\nheadrace_beam.ModelHandler\n",
    ),
    "parentheses and attributes over several lines": (
        "import apache_beam as beam\nx = (beam.ml\n     .inference.base.RunInference.from_callable)(beam)\n",
        "import apache_beam as beam\nimport headrace.beam\nx = (headrace.beam.RunInference.from_callable)(beam)\n",
    ),
    "characters of several bytes": (
        "import apache_beam as beam\nprint('é—', beam.ml.inference.base.RunInference, beam, '…')\n",
        "import apache_beam as beam\nimport headrace.beam\nprint('é—', headrace.beam.RunInference, beam, '…')\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), MOVES.values(), ids=MOVES)
def test_source_moves(before, after):
    moved = migrate_source(before)
    assert moved.text == after
    assert [finding for finding in moved.findings if finding.needs_person] == []
    assert migrate_source(after).text == after


@pytest.mark.parametrize("end", ["\n    ", "   \n \t\n", "\r\n  \r\n", "\n\f\n  ", "# why \\\n  \n"])
def test_blank_lines_at_the_end_stay(end):
    moved = migrate_source(f"from apache_beam.ml.inference.base import RunInference{end}")
    assert moved.text == f"from headrace.beam import RunInference{end}"
    assert moved.findings == ()
