"""A Java pipeline gets its predictions from Headrace: the example, on Prism."""

from __future__ import annotations

import pickle
import subprocess
import sys

import from_java
import pytest
from members import members
from sklearn.datasets import load_iris


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The example's model and measurements."""
    folder = tmp_path_factory.mktemp("flowers")
    subprocess.run([sys.executable, from_java.PROJECT / "flowers.py", "model.pkl", "in.csv"], cwd=folder, check=True)
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("in_processes", [False, True])
def test_a_java_pipeline_gets_what_the_model_predicts(files, in_processes):
    output = files / f"{in_processes}.csv"
    with from_java.running(in_processes=in_processes) as services:
        services.run("Flowers", f"--input={files}/in.csv", f"--output={output}", f"--model={files}/model.pkl")
    data = load_iris()
    expected = [
        (f"flower {number}", str(data.target_names[shares.argmax()]), pytest.approx(shares.max()))
        for number, shares in enumerate(pickle.loads((files / "model.pkl").read_bytes()).predict_proba(data.data))
    ]
    lines = [line.split(",") for line in output.read_text().splitlines()]
    found = sorted((name, species, float(probability)) for name, species, probability in lines)
    assert found == sorted(expected)
    assert members(services.mark) == []


@pytest.mark.timeout(1200)
def test_an_error_of_the_handler_is_that_of_the_pipeline(files):
    with from_java.running() as services, pytest.raises(from_java.EngineError, match=r"gone\.pkl"):
        services.run("Flowers", f"--input={files}/in.csv", f"--output={files}/no", f"--model={files}/gone.pkl")
