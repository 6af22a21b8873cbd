"""Headrace installs with nothing but pip, from a wheel, a folder and a Git repository, and then predicts.

One environment, made by ``venv``, gets the dependencies once, with the wheel; the other forms replace Headrace alone.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.large, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
PREDICT = """
import pickle, numpy
from sklearn.linear_model import LinearRegression
import headrace
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy

x = numpy.arange(5.0).reshape(-1, 1)
pickle.dump(LinearRegression().fit(x, 2 * x[:, 0]), open("model.pkl", "wb"))
open("rows.csv", "w").write("x\\n1\\n2\\n")
results = headrace.predict(SklearnModelHandlerNumpy("model.pkl"), x)
print(headrace.__file__, [round(result.inference) for result in results])
"""


def ran(*command, cwd):
    """What a command prints; this environment's own packages are out of its reach."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, check=False, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("installing")


@pytest.fixture(scope="module")
def source(folder):
    """The project as someone gets it: a folder that is also a Git repository."""
    source = folder / "headrace"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for part in PARTS:
        shutil.copy(ROOT / part, source)
    ran("git", "init", "--quiet", cwd=source)
    ran("git", "add", "--all", cwd=source)
    author = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false")
    ran("git", *author, "commit", "--quiet", "--message", "All", cwd=source)
    return source


@pytest.fixture(scope="module")
def wheel(source, folder):
    """By the command of ``make wheel``."""
    ran(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), ".", cwd=source)
    (wheel,) = folder.glob("headrace-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel, folder):
    """The programs of a fresh environment with the wheel and its extra for scikit-learn."""
    ran(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    programs = folder / "venv" / "bin"
    ran(programs / "pip", "install", "--quiet", f"{wheel}[sklearn]", cwd=folder)
    return programs


def predicts(environment, folder):
    where, _, predictions = ran(environment / "python", "-c", PREDICT, cwd=folder).partition(" ")
    assert Path(where).is_relative_to(environment.parent)
    assert predictions.strip() == "[0, 2, 4, 6, 8]"
    run = ("run", "rows.csv", "--handler", "sklearn-numpy", "--model", "model.pkl", "--output", "out.jsonl")
    assert "predictions" in ran(environment / "headrace", *run, cwd=folder)


def test_make_wheel_is_the_documented_command():
    recipe = (ROOT / "Makefile").read_text().partition("\nwheel:")[2].splitlines()[1]
    assert recipe.split(maxsplit=1)[1] == "-m pip wheel --no-deps --wheel-dir dist ."
    assert "\npip wheel --no-deps --wheel-dir dist ." in (ROOT / "docs" / "install.md").read_text()


def test_wheel_has_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "headrace/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"headrace"}


def test_wheel_predicts(environment, folder):
    predicts(environment, folder)


@pytest.mark.parametrize("form", ["{source}[sklearn]", "headrace[sklearn] @ git+file://localhost{source}"])
def test_a_folder_and_a_git_repository_install_alike(environment, folder, source, form):
    installing = ("install", "--quiet", "--force-reinstall", "--no-deps", form.format(source=source))
    ran(environment / "pip", *installing, cwd=folder)
    predicts(environment, folder)


def test_command_for_a_missing_extra_works(environment, folder):
    importing = (environment / "python", "-c", "import headrace.handlers.onnx_inference")
    said = subprocess.run(importing, check=False, cwd=folder, capture_output=True, text=True).stderr
    wanted = re.search(r"MissingExtraError: onnxruntime is not installed; .*: pip install (.*)", said)
    assert wanted, said
    ran(environment / "pip", "install", "--quiet", *re.findall(r'"([^"]+)"', wanted[1]), cwd=folder)
    ran(*importing, cwd=folder)


def test_an_extra_is_added_by_name_once_headrace_is_installed(environment, folder):
    planned = ran(environment / "pip", "install", "--dry-run", "headrace[test]", cwd=folder)
    assert "Would install" in planned
    assert "hypothesis" in planned
