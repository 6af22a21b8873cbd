"""A Java pipeline gets its predictions from Headrace: the example, on Prism."""

from __future__ import annotations

import pickle
import subprocess
import sys

import from_java
import pytest
from fetch import EngineError
from sklearn.datasets import load_iris


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The example's model and measurements."""
    folder = tmp_path_factory.mktemp("flowers")
    subprocess.run([sys.executable, from_java.PROJECT / "flowers.py", "model.pkl", "in.csv"], cwd=folder, check=True)
    return folder


def assert_predicts(services, files):
    output = files / "out.csv"
    services.run("Flowers", f"--input={files}/in.csv", f"--output={output}", f"--model={files}/model.pkl")
    data = load_iris()
    expected = [
        (f"flower {number}", str(data.target_names[shares.argmax()]), pytest.approx(shares.max()))
        for number, shares in enumerate(pickle.loads((files / "model.pkl").read_bytes()).predict_proba(data.data))
    ]
    lines = [line.split(",") for line in output.read_text().splitlines()]
    found = sorted((name, species, float(probability)) for name, species, probability in lines)
    assert found == sorted(expected)
    output.unlink()


@pytest.mark.timeout(1200)
def test_a_java_pipeline_gets_what_the_model_predicts_or_the_handlers_error(for_java, files):
    with for_java(in_processes=False) as services:
        assert_predicts(services, files)
        with pytest.raises(EngineError, match=r"gone\.pkl"):
            services.run("Flowers", f"--input={files}/in.csv", f"--output={files}/no", f"--model={files}/gone.pkl")


@pytest.mark.timeout(1200)
def test_a_java_pipeline_gets_what_the_model_predicts_in_a_process_of_its_own(for_java, files):
    with for_java(in_processes=True) as services:
        assert_predicts(services, files)
