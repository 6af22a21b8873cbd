"""Checks of classes, where Beam's objects and Headrace's meet."""

from __future__ import annotations

import pytest

from headrace.migrate.source import migrate_source

IMPORT = "from apache_beam.ml.inference.base import PredictionResult\n"


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("isinstance(x, (int, PredictionResult))", "isinstance(..., PredictionResult)"),
        ("self.assertIsInstance(x, PredictionResult)", "assertIsInstance(..., PredictionResult)"),
        ("self.assertIs(type(x), PredictionResult)", "type(...) == PredictionResult"),
        ("type(x) == PredictionResult", "type(...) == PredictionResult"),
        ("x.__class__ in (int, PredictionResult)", "type(...) == PredictionResult"),
        ("try: x\nexcept (OSError, PredictionResult): pass", "except PredictionResult"),
        ("match x:\n  case PredictionResult(a): pass", "case PredictionResult(...)"),
    ],
)
def test_class_that_moves_does_not_match_what_stays(code, check):
    (finding,) = migrate_source(f"{IMPORT}{code}\n").findings
    assert finding.message == f"{check} does not match Beam's objects: name Beam's class, too."
    assert finding.needs_person
    assert finding.if_beam_stays


def test_class_that_stays_matches_nothing_of_headraces():
    text = "from apache_beam.ml.inference import base\ntype(x) is base._PreProcessingModelHandler\n"
    messages = [one.message for one in migrate_source(text).findings if not one.if_beam_stays]
    expected = "type(...) == _PreProcessingModelHandler asks for a class of Beam's, which no object of Headrace's has"
    assert [one for one in messages if one.startswith(expected)]


@pytest.mark.parametrize(
    "code", ["type(x) == str", "x == PredictionResult(1, 2)", "self.assertEqual(x, PredictionResult(1, 2))"]
)
def test_other_comparisons_are_left_alone(code):
    assert migrate_source(f"{IMPORT}{code}\n").findings == ()
