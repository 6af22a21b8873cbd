"""Beam's names in text."""

from __future__ import annotations

import pytest

from headrace.migrate.source import migrate_source

BASE = "from apache_beam.ml.inference.base import RunInference"
MODULES = "from apache_beam.ml.inference import base, onnx_inference as o"
INDENTED = "    from apache_beam.ml.inference.base import (\n        X)\n    import apache_beam.ml.inference.utils\n"
PATCHED = "apache_beam.ml.inference.vertex_ai_inference.retried"


CODE = (True, "code within this text imports from Beam's package: write Headrace's.")
TEXTS = {
    "exec": (f"exec('import os; {BASE}')\n", [(1, 6, *CODE)]),
    "bytes": (f"run([python, '-c', b'x\\n{MODULES}'])\n", [(1, 20, *CODE)]),
    "an f-string": (f"é = 1; code = f'''\n{{é}}\n{INDENTED}'''\n", [(1, 15, *CODE)]),
    "a module put together": ("exec(f'from apache_beam.ml.inference.{name} import RunInference')\n", [(1, 6, *CODE)]),
    "a method that is patched": (
        "patch('apache_beam.ml.inference.base.KeyedModelHandler.load_model')\n",
        [
            (1, 7, True, "the text 'apache_beam.ml.inference.base.KeyedModelHandler.load_model' names something of "
             "Beam's; Headrace's is 'headrace.beam.KeyedModelHandler.load_model'."),
        ],
    ),
    "documentation": (
        f'def f():\n  """Runs.\n\n  >>> {BASE}\n  """\n',
        [(2, 3, False, "this documentation imports from Beam's package: write Headrace's.")],
    ),
    "a name put together": (
        "load(f'apache_beam.ml.inference.{name}')\n",
        [
            (1, 6, True, "the text 'apache_beam.ml.inference.{}' becomes a name of Beam's while running: "
             "write Headrace's."),
        ],
    ),
    "a name that is patched": (
        f"mock.patch('{PATCHED}')\n",
        [
            (1, 12, True, f"the text '{PATCHED}' names something of Beam's, which the moved code does not use: "
             "name what headrace.handlers.vertex_ai_inference has."),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_texts_that_name_beams_package_are_found(text, expected):
    moved = migrate_source(text)
    assert moved.text == text
    assert [(one.line, one.column, one.needs_person, one.message) for one in moved.findings] == expected


@pytest.mark.parametrize("text", ["log('uses apache_beam.ml.inference in %s', x)\n", f"# {BASE}\n", "x = f'{y}'\n"])
def test_other_texts_are_left_alone(text):
    assert migrate_source(text).findings == ()
