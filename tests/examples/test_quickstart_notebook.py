"""The notebook runs from top to bottom, and says what its text promises."""

import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.large

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def text_of(output):
    data = output.get("data", {})
    return output.get("text") or data.get("text/html") or data["text/plain"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each cell of code shows, as text without line breaks; the last one, which is added, shows a failure."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("failures[7]"))
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patched:  # as if this environment were activated
        patched.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(map(text_of, shown)) for shown in cells]
    return [" ".join(text.split()) for text in texts]


def test_notebook_has_no_stored_outputs():
    assert '"outputs": []' in NOTEBOOK.read_text()
    assert '"output_type"' not in NOTEBOOK.read_text()


def test_notebook_predicts_most_digits_and_names_the_spoilt_rows(outputs):
    assert float(outputs[1].strip("'").partition("%")[0]) > 90
    assert outputs[2].startswith("{7: ('preprocessing', 'ValueError(")
    assert "130: ('preprocessing', 'TypeError(" in outputs[2]
    assert "row 7 ValueError" in outputs[6]
    assert "row 130 TypeError" in outputs[6]


def test_notebook_loses_only_the_row_that_hangs(outputs):
    assert "[4, " in outputs[4]
    assert "TimeoutError" in outputs[4]
    assert outputs[4].endswith(" 6]")


def test_notebook_shows_a_failure_as_a_table(outputs):
    assert "<table" in outputs[-1]
    assert "preprocessing failed" in outputs[-1]
