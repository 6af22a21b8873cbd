"""Where names are, compared with Beam's modules and with the table in the documentation.

Beam's modules are parsed, not imported: most need a framework.
"""

import ast
import importlib.util
from pathlib import Path

import pytest

from headrace.migrate.names import INFERENCE, extras_in, find_counterpart

BEAM = Path(importlib.util.find_spec("apache_beam").origin).parent / "ml" / "inference"
GUIDE = Path(__file__).parents[2] / "docs" / "migrating.md"
NO_API = ("LOGGER", "logger", "TRT_LOGGER", "MIN_TRT_MAJOR_VERSION")


def public_names(module):
    """What a module of Beam's defines under public names."""
    tree = ast.parse((BEAM / f"{module}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_") and name not in NO_API)


def beams_modules():
    files = sorted(path.stem for path in BEAM.glob("*.py") if not path.stem.endswith(("_test", "__init__")))
    return ["base", *(name for name in files if name != "base")]


def table():
    """The table of the documentation: a row for each place that names of a module move to, or stay in."""
    rows = ["| in `apache_beam.ml.inference` | in Headrace | names |", "|---|---|---|"]
    for module in beams_modules():
        places = {}
        for name in public_names(module):
            found = find_counterpart((*INFERENCE, module, name))
            places.setdefault(found.module if found else None, []).append(f"`{name}`")
        for place, names in sorted(places.items(), key=lambda one: one[0] is None):
            where = f"`{place}`" if place else "stays Beam's"
            rows.append(f"| `{module}` | {where} | {', '.join(sorted(names, key=str.lower))} |")
    return "\n".join(rows)


@pytest.mark.since_beam("2.77", reason="the table is about this version")
def test_table_in_the_guide_has_every_public_name():
    assert table().count("|") > 60
    assert table() in GUIDE.read_text(), f"the table should be:\n{table()}"


@pytest.mark.parametrize("module", ["base", "utils", "sklearn_inference", "onnx_inference", "pytorch_inference"])
def test_handlers_and_public_names_of_base_have_counterparts(module):
    names = {name for name in public_names(module) if not name.endswith("InferenceFn")} - {"RemoteModelHandler"}
    assert {name for name in names if find_counterpart((*INFERENCE, module, name)) is None} == set()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("base", ("headrace.beam", "", 4)),
        ("utils", ("headrace.beam", "", 4)),
        ("onnx_inference", ("headrace.handlers.onnx_inference", "", 4)),
        ("RunInference", ("headrace.beam", "RunInference", 4)),
        ("base.RunInference.from_callable", ("headrace.beam", "RunInference", 5)),
        ("pytorch_inference.PredictionResult", ("headrace.beam", "PredictionResult", 5)),
        ("vertex_ai_inference.RunInference", ("headrace.beam", "RunInference", 5)),
        ("base_test", None),
        ("base._ModelStatus", None),
        ("base.RemoteModelHandler", None),
        ("gemini_inference.GeminiModelHandler", ("headrace.handlers.gemini_inference", "GeminiModelHandler", 5)),
        ("gemini_inference.Part", None),  # which Headrace's module imports for type checkers only
        ("agent_development_kit", None),
        ("array_batches", None),
    ],
)
def test_counterpart_of_a_dotted_name(path, expected):
    assert find_counterpart((*INFERENCE, *path.split("."))) == expected


@pytest.mark.parametrize(
    ("text", "extras"),
    [
        ("from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy", {"sklearn"}),
        ("from headrace.handlers import onnx_inference as o\no.OnnxModelHandlerNumpy", {"onnx"}),
        ("from headrace.handlers.xgboost_inference import XGBoostModelHandlerDatatable", {"datatable"}),
        (r'"from headrace.handlers.onnx_inference import (\nOnnxModelHandlerNumpy)\n"', {"onnx"}),  # in a notebook
        ("from mine.sklearn_inference import SklearnModelHandlerNumpy", set()),
        ("from headrace.beam import RunInference", set()),
    ],
)
def test_extras_are_those_of_the_handlers(text, extras):
    assert extras_in(text) == extras
