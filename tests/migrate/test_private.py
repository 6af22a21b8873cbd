"""Private attributes of Beam's classes."""

from __future__ import annotations

import pytest

from headrace.migrate.names import private_of_beam, private_of_headrace
from headrace.migrate.source import migrate_source

HANDLER = "PytorchModelHandlerTensor"
IMPORT = f"from apache_beam.ml.inference.pytorch_inference import {HANDLER}\n"
BASE = "from apache_beam.ml.inference import base\n"
THERE = "_model_class"
MISSING = sorted(private_of_beam("RunInference") - private_of_headrace("RunInference"))[0]

USES = {
    "of an object": f"{IMPORT}h = {HANDLER}()\nh.{THERE}\n",
    "of what a call makes": f"{IMPORT}\n{HANDLER}().{THERE}\n",
    "of self in a derived class": f"{IMPORT}class H({HANDLER}):\n  def load_model(self): return self.{THERE}\n",
    "of a class derived from a derived one": (
        f"{IMPORT}class H({HANDLER}): pass\nclass I(H):\n  def f(self): super().{THERE}\n"
    ),
    "set": f"{IMPORT}class H({HANDLER}):\n  def __init__(self): self.{THERE} = 1\n",
    "of an argument": f"{IMPORT}\ndef f(handler): return handler.{THERE}\n",
    "of a class of the file": f"{IMPORT}class H({HANDLER}): pass\nH().{THERE}\n",
    "overridden": f"{IMPORT}class H({HANDLER}):\n  def {THERE}(self): pass\n",
}


@pytest.mark.parametrize("text", USES.values(), ids=USES)
def test_attribute_that_exists_in_headrace_is_noted(text):
    (finding,) = migrate_source(text).findings
    assert finding.message == f"{HANDLER}.{THERE} is private in Beam, and exists in Headrace."
    assert text.splitlines()[finding.line - 1][finding.column - 1 :].startswith(THERE)
    assert not finding.needs_person


@pytest.mark.parametrize("text", [f"base.RunInference(1).{MISSING}\n", f"base.RunInference.{MISSING}\n"])
def test_attribute_that_is_missing_needs_a_hand(text):
    (finding,) = migrate_source(BASE + text).findings
    assert finding.message.startswith(f"RunInference.{MISSING} is private in Beam, and missing in Headrace: use its ")
    assert finding.needs_person


@pytest.mark.parametrize(
    "text",
    [
        f"{IMPORT}class Own:\n  def __init__(self): self.{THERE} = 1\n  def f(self, other): other.{THERE}\n",
        f"{IMPORT}class H({HANDLER}):\n  def f(self): self._mine = self.__class__._mine\n",
        f"{IMPORT}x = object()\nx = print()\nx.{THERE}\n",
        f"{BASE}h.{THERE}\n",
    ],
    ids=["of another class", "of one's own", "of another object", "of a class that the file does not name"],
)
def test_other_attributes_are_left_alone(text):
    assert migrate_source(text).findings == ()


OWN = sorted(private_of_headrace(HANDLER) - private_of_beam(HANDLER))[0]


@pytest.mark.parametrize(
    "text",
    [
        f"{IMPORT}class H({HANDLER}):\n  def {OWN}(self): pass\n",
        f"{IMPORT}class H({HANDLER}):\n  def __init__(self): self.{OWN} = 1\n",
        f"{IMPORT}class H({HANDLER}): pass\nclass I(H):\n  def f(self): return self.{OWN}\n",
    ],
)
def test_name_of_a_derived_class_that_headrace_uses_for_itself_needs_a_hand(text):
    (finding,) = migrate_source(text).findings
    assert finding.message == f"{OWN} is in use by Headrace's {HANDLER}: give yours another name."
    assert text.splitlines()[finding.line - 1][finding.column - 1 :].startswith(OWN)
    assert finding.needs_person
