"""What a person is told: where it is, what it is, and whether something is left to do."""

import pytest

from headrace.migrate.source import migrate_source

BY_HAND, NOTE = True, False
BASE = "from apache_beam.ml.inference import base\n"
RESULT = "from apache_beam.ml.inference.base import PredictionResult\n"

FOUND = {
    "a handler without a counterpart": (
        "from apache_beam.ml.inference.agent_development_kit import ADKAgentModelHandler\n",
        (1, 60, NOTE, "agent_development_kit.ADKAgentModelHandler stays Beam's, and works as it is"),
    ),
    "the package that nothing uses": (
        "from apache_beam.ml import inference as i\n",
        (1, 28, NOTE, "inference stays Beam's, and works as it is: Headrace has no counterpart."),
    ),
    "a private name": (
        "from apache_beam.ml.inference.base import _ModelStatus\n",
        (1, 43, BY_HAND, "_ModelStatus stays Beam's: Headrace has no counterpart of this private class; look at"),
    ),
    "a handler of remote endpoints": (
        "from apache_beam.ml.inference.base import RemoteModelHandler\n",
        (1, 43, NOTE, "base.RemoteModelHandler stays Beam's: Headrace's sends several requests at a time"),
    ),
    "a class of Beam's that is compared": (
        f"{BASE}isinstance(x, (int, base._PreProcessingModelHandler))\n",
        (2, 21, BY_HAND, "isinstance(..., _PreProcessingModelHandler) asks for a class of Beam's"),
    ),
    "a lookup while running": (
        f"{BASE}getattr(base, name)\n",
        (2, 1, BY_HAND, "getattr(base, ...) looks a name up while running: check it."),
    ),
    "what is no Python": (
        "from apache_beam.ml.inference import base\nprint 1\n",
        (2, 0, BY_HAND, "cannot be parsed as Python; nothing is changed."),
    ),
}  # fmt: skip


def cases():
    """What is found, with the version of Beam that has the module."""
    for name, case in FOUND.items():
        since = [pytest.mark.since_beam("2.77", reason="Beam has no agents before")] if "agent" in case[0] else []
        since += [pytest.mark.since_beam("2.65", reason="Beam has none before")] if "RemoteModel" in case[0] else []
        yield pytest.param(*case, id=name, marks=since)


@pytest.mark.parametrize(("text", "found"), list(cases()))
def test_advice_is_given(text, found):
    line, column, needs_person, words = found
    finding = next(one for one in migrate_source(text).findings if words in one.message)
    assert (finding.line, finding.column, finding.needs_person) == (line, column, needs_person)


@pytest.mark.parametrize(
    "text",
    [
        f"{BASE}getattr(base, 'RunInference')\n",
        f"{BASE}isinstance(x, str)\n",
        '"""Uses apache_beam.ml.inference.base.RunInference."""\n',
    ],
)
def test_advice_is_not_given_where_all_is_well(text):
    assert [one for one in migrate_source(text).findings if one.needs_person] == []


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("isinstance(x, (int, PredictionResult))", "isinstance(..., PredictionResult)"),
        ("self.assertIsInstance(x, PredictionResult)", "assertIsInstance(..., PredictionResult)"),
        ("type(x) == PredictionResult", "type(...) == PredictionResult"),
        ("x.__class__ in (int, PredictionResult)", "type(...) == PredictionResult"),
        ("try: x\nexcept (OSError, PredictionResult): pass", "except PredictionResult"),
        ("match x:\n  case PredictionResult(a): pass", "case PredictionResult(...)"),
    ],
)
def test_class_that_moves_does_not_match_what_stays(code, check):
    (finding,) = migrate_source(f"{RESULT}{code}\n").findings
    assert finding.message.startswith(f"{check} does not match Beam's objects: name Beam's class, too, if")
    assert not finding.needs_person


@pytest.mark.parametrize(
    "code", ["type(x) == str", "x == PredictionResult(1, 2)", "self.assertEqual(x, PredictionResult(1, 2))"]
)
def test_other_comparisons_are_left_alone(code):
    assert migrate_source(f"{RESULT}{code}\n").findings == ()


def test_long_lists_that_are_taken_apart_keep_their_comments():
    names = [f"_Private{number}" for number in range(8)]
    text = f"if 1:\n    from apache_beam.ml.inference.base import ({', '.join(names)},\n        RunInference)  # why\n"
    text = text.replace("RunInference)", "# runs\n        RunInference)")
    assert migrate_source(text).text == (
        f"if 1:\n    # runs\n    from apache_beam.ml.inference.base import {', '.join(names)}\n"
        "    from headrace.beam import RunInference  # why\n"
    )


RUN = "from apache_beam.ml.inference.base import RunInference"
MODULES = "from apache_beam.ml.inference import base, onnx_inference as o"
INDENTED = "    from apache_beam.ml.inference.base import (\n        X)\n    import apache_beam.ml.inference.utils\n"


CODE = (True, "code within this text imports from Beam's package: write Headrace's.")
TEXTS = {
    "exec": (f"exec('import os; {RUN}')\n", [(1, 6, *CODE)]),
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
        f'def f():\n  """Runs.\n\n  >>> {RUN}\n  """\n',
        [(2, 3, False, "this documentation imports from Beam's package: write Headrace's.")],
    ),
    "a name put together": (
        "load(f'apache_beam.ml.inference.{name}')\n",
        [
            (1, 6, True, "the text 'apache_beam.ml.inference.{}' names something of Beam's; "
             "Headrace may have another, or none."),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_texts_that_name_beams_package_are_found(text, expected):
    moved = migrate_source(text)
    assert moved.text == text
    assert [(one.line, one.column, one.needs_person, one.message) for one in moved.findings] == expected


@pytest.mark.parametrize("text", ["log('uses apache_beam.ml.inference in %s', x)\n", f"# {RUN}\n", "x = f'{y}'\n"])
def test_other_texts_are_left_alone(text):
    assert migrate_source(text).findings == ()


def test_chains_of_a_module_of_which_something_stays_move_one_by_one():
    moved = migrate_source(f"{BASE}base.RunInference(base._ModelStatus, base.RunInference)\n")
    assert moved.text == (
        f"{BASE}import headrace.beam\nheadrace.beam.RunInference(base._ModelStatus, headrace.beam.RunInference)\n"
    )
    assert [(one.line, one.column, one.needs_person) for one in moved.findings] == [(2, 19, True)]
    assert migrate_source(moved.text).text == moved.text
