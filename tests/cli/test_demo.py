"""The digits demo: real data through a real model from the command line."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def scripts():
    """``prepare.py`` and ``report.py`` as modules."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"digits_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load("prepare"), load("report")


@pytest.fixture
def demo(scripts, folder, headrace):
    """The folder in which the demo has run."""
    prepare, _ = scripts
    prepare.main(folder.path)
    model = ("--handler", "sklearn-numpy", "--model", folder.path / "model.pkl", "--columns", "pixel_*")
    assert headrace("run", folder.path / "digits.csv", *model, "--output", folder.path / "predictions.jsonl").code == 0
    return folder


def test_exactly_the_spoilt_rows_are_dead_letters(scripts, demo, capsys):
    prepare, report = scripts
    assert report.main(demo.path) == 0
    out = capsys.readouterr().out
    assert "Exactly the 9 spoilt rows are dead letters; the 1788 others are predicted." in out
    assert float(out.partition(" held out are right: ")[2].partition("%")[0]) > 90
    letters = demo.rows("predictions.dead-letters.jsonl")
    assert set(map(report.number_of, letters)) == set(prepare.SPOILT)
    for row, (pixel, text) in prepare.SPOILT.items():
        stage = "preprocessing" if text in ("", "NaN", "inf") else "reading"
        assert f"row {row:<5} {stage}: column '{pixel}' holds" in out
