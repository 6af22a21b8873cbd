"""``type: RunInference`` of Beam YAML: what it makes of rows, and once through Beam's own command."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import apache_beam as beam
import pandas as pd
import pytest
from apache_beam.typehints.row_type import RowTypeConstraint
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from headrace import ConfigurationError
from headrace.beam.yaml import YamlRunInference
from toys import Acting, each

FIELDS = {"id": int, "age": int | None, "city": str}
ROWS = [(1, 20, "a"), (2, 50, "b")]
BAD = (3, None, "a")
LABEL = {"callable": "lambda result: str(result.inference)"}
SEEN = ["age", "city"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a model of a frame's columns, a number and a text."""
    frame = pd.DataFrame({"age": [20, 30, 40, 50], "city": ["a", "b", "a", "b"]})
    encoded = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    path = tmp_path_factory.mktemp("yaml") / "model.pkl"
    path.write_bytes(pickle.dumps(make_pipeline(encoded, LogisticRegression()).fit(frame, ["no", "no", "yes", "yes"])))
    return str(path)


def made(model, type_="sklearn-pandas", **config):
    return {"type": type_, "config": {"model_uri": model, **config}}


def score(run, rows, handler, **options):
    """What comes out, encoded as the types say and decoded again: each output's rows as dicts, in order."""
    as_row = beam.Map(lambda row: beam.Row(**dict(zip(FIELDS, row, strict=True))))
    given = run.create(rows) | "rows" >> as_row.with_output_types(RowTypeConstraint.from_fields(FIELDS.items()))
    answer = given | YamlRunInference(handler, **options)
    outputs = answer if isinstance(answer, dict) else {"good": answer}
    found = run.values(**{name: pcoll | f"send {name}" >> beam.Reshuffle() for name, pcoll in outputs.items()})
    return [sorted((row._asdict() for row in one), key=str) for one in (found if len(outputs) > 1 else [found])]


def test_field_is_a_row_of_the_prediction(run, model):
    ((one, two),) = score(run, ROWS, made(model), columns=SEEN)
    assert {name: one[name] for name in FIELDS} == {"id": 1, "age": 20, "city": "a"}
    assert [row["inference"].inference for row in (one, two)] == ["no", "yes"]
    assert one["inference"].model_id == model


def doubling():
    return Acting(act=each(lambda example: example["age"] * 2))


def test_field_is_what_a_handler_of_ones_own_predicts(run):
    (rows,) = score(run, ROWS, {"type": f"{__name__}:doubling"}, inference_tag="twice")
    assert [row["twice"] for row in rows] == [40, 100]


def test_functions_before_and_after_the_model_and_the_name_of_the_field(run, model, tmp_path):
    (tmp_path / "mine.py").write_text("def frame(row):\n    return {'age': row.age + 30, 'city': row.city}\n")
    before = {"path": str(tmp_path / "mine.py"), "name": "frame"}
    handler = made(model, "SklearnModelHandlerPandas", preprocess=before, postprocess=LABEL)
    (rows,) = score(run, ROWS, handler, inference_tag="label")
    assert rows == [{**dict(zip(FIELDS, row, strict=True)), "label": "yes"} for row in ROWS]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "ValueError: Input X contains NaN"),
        ({"preprocess": {"callable": "lambda row: {'age': row.age + 0, 'city': row.city}"}}, "TypeError: unsupported"),
        ({"postprocess": {"callable": "lambda result: str(1 // (result.inference == 'yes'))"}}, "ZeroDivisionError: "),
    ],
)
def test_rows_that_fail_in_any_stage_are_the_output_that_error_handling_names(run, model, config, message):
    columns = None if "preprocess" in config else SEEN
    rows = [ROWS[1], ROWS[0] if "postprocess" in config else BAD]
    good, (bad,) = score(run, rows, made(model, **config), columns=columns, error_handling={"output": "bad"})
    assert [row["id"] for row in good] == [2]
    assert bad["element"]._asdict() == dict(zip(FIELDS, rows[1], strict=True))
    assert bad["msg"].startswith(message)
    assert "Traceback" in bad["stack"]


def test_too_many_errors_fail_the_pipeline(run, model):
    with pytest.raises(Exception, match="threshold"):
        score(run, [*ROWS, BAD], made(model), columns=SEEN, error_handling={"output": "bad", "threshold": 0.1})


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("sklearn-pandas", {}, "model_handler takes type"),
        ({"type": "sklearn-panda", "config": {}}, {}, "no handler 'sklearn-panda'; did you mean 'sklearn-pandas'"),
        ({"type": "sklearn-pandas", "config": {"uri": "x"}}, {}, "model_handler sklearn-pandas: .*uri"),
        ({"type": "no.such:thing"}, {}, "model_handler no.such:thing: No module"),
        ({"type": "sklearn-pandas", "config": {"model_uri": "x", "preprocess": "f"}}, {}, "preprocess takes callable"),
        (made("x"), {"columns": "agee"}, "the rows have no field 'agee'; did you mean 'age'"),
        (made("x"), {"error_handling": {"threshold": 1}}, "error_handling needs output"),
        (made("x"), {"error_handling": {"output": "good"}}, "'good' is that of the predictions"),
        (made("x"), {"error_handling": {"output": "bad", "treshold": 1}}, "no argument 'treshold'.*'threshold'"),
    ],
)
def test_wrong_configuration_is_one_error_before_anything_runs(run, spec, options, message):
    with pytest.raises(ConfigurationError, match=message):
        score(run, ROWS, spec, **options)


PIPELINE = """
pipeline:
  transforms:
    - type: Create
      config: {elements: [{id: 1, age: 20, city: a}, {id: 2, age: 50, city: b}, {id: 3, age: null, city: a}]}
    - type: RunInference
      input: Create
      config:
        model_handler:
          type: sklearn-pandas
          config:
            model_uri: MODEL
            postprocess: {callable: "lambda result: str(result.inference)"}
        columns: [age, city]
        inference_tag: label
        error_handling: {output: bad}
    - type: MapToFields
      name: Failed
      input: RunInference.bad
      config: {language: python, fields: {id: element.id, label: "msg[:10]"}}
    - type: Flatten
      input: [RunInference, Failed]
    - type: LogForTesting
      input: Flatten
providers:
  - type: python
    config: {}
    transforms:
      RunInference: headrace.beam.yaml.YamlRunInference
"""


@pytest.mark.large
def test_beams_own_command_runs_it(model, tmp_path):
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("MODEL", model))
    command = [sys.executable, "-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml"]
    command += ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line.partition("INFO:root:")[2]) for line in done.stderr.splitlines() if "INFO:root:{" in line]
    assert {row["id"]: row["label"] for row in rows} == {1: "no", 2: "yes", 3: "ValueError"}
