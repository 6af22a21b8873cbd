"""What a model host has in common with its owner's program: classes, environment variables, modules."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy
import pytest

from headrace.runtime.prepare import InferenceRequest, prepare
from toys import Acting, each, run

pytestmark = pytest.mark.usefixtures("module_travels")


SCRIPT = """
import enum, sys
from dataclasses import dataclass
from typing import NamedTuple
from headrace import ModelHandler, predict

class Pair(NamedTuple):
    first: object
    second: object

@dataclass
class Record:
    value: object

class Colour(enum.Enum):
    RED = 1

class Refused(Exception):
    def __init__(self, value, *, why):
        super().__init__(value)
        self.why = why

class Handler(ModelHandler):
    calls = 0

    def load_model(self):
        return OFFSET

    def get_num_bytes(self, batch):
        return 0

    def run_inference(self, batch, model, inference_args=None):
        if Record(13) in batch:
            raise Refused(13, why="unlucky")
        Handler.calls += 1
        return [Pair(Record(model), [example, Colour.RED, Handler, added]) for example in batch]

def added(value):
    return Pair(value, OFFSET)

OFFSET = 5

def main():
    class Local(Handler):
        def load_model(self):
            return super().load_model()

    factor = 2
    for kind in (Handler, Local):
        handler = kind().with_preprocess_fn(lambda n: Record(n * factor + OFFSET)).with_postprocess_fn(added)
        for outcome in predict(handler, [1, 4, 2], isolate=True, on_failure="yield"):
            if hasattr(outcome, "error"):
                kind, error = outcome.record[1][0], outcome.error
                print(type(error) is Refused, kind is Refused, error.why, outcome.element == Record(13))
                continue
            prediction, offset = outcome
            example, colour, found, function = prediction.second
            print(isinstance(outcome, Pair), isinstance(prediction, Pair), offset, end=" ")
            print(prediction.first == Record(5), type(example) is Record, colour is Colour.RED, found is Handler)
    print(Handler.calls, "apache_beam" in sys.modules)

if __name__ == "__main__":
    main()
"""


def test_objects_of_a_scripts_classes_come_back_as_the_scripts(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280, check=False)
    good, bad = "True True 5 True True True True", "True True unlucky True"
    assert done.stdout.splitlines() == [*[good, bad, good] * 2, "0 False"], done.stderr
    assert done.stderr == ""


def test_host_imports_only_what_it_needs_and_alone_has_the_handlers_environment_variables_when_it_loads(opened):
    def load():
        values.append(os.getenv("HEADRACE_TEST_VARIABLE"))

    def seen(_):
        found = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
        return [*values, *sorted(name for name in found if not name.startswith("_"))]

    values = []
    handler = Acting(each(seen), load, env_vars={"HEADRACE_TEST_VARIABLE": "1"})
    worker = opened(prepare(handler, InferenceRequest(isolate=True)))
    assert run(worker, [1]) == [["1", "cloudpickle", "headrace"]]
    assert run(worker, [numpy.ones(3)]) == [["1", "cloudpickle", "headrace", "numpy"]]
    assert "HEADRACE_TEST_VARIABLE" not in os.environ
