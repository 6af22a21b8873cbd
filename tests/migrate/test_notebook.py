"""Notebooks: cells are one program, and all but the cells' code stays as it was."""

import json

import pytest

from headrace.migrate.files import migrate_notebook

IMPORTS = """\
%pip install apache-beam
from apache_beam.ml import inference
!ls \\
  -l x
if 1:
    %time x = 1
files = !ls
x.y?"""


def notebook(*cells, as_text=False):
    sources = [cell if as_text else cell.splitlines(keepends=True) for cell in cells]
    code = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": one} for one in sources
    ]
    text = {"cell_type": "markdown", "metadata": {}, "source": ["é: `apache_beam.ml.inference`"]}
    return {"cells": [text, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def sources(text):
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("as_text", [False, True])
def test_cells_move_as_one_program(as_text):
    shell = "%%bash\necho apache_beam.ml.inference 'x"
    given = notebook(IMPORTS, shell, "", "%%time\ninference.RunInference(1)", as_text=as_text)
    moved = migrate_notebook(json.dumps(given))
    assert sources(moved.text) == [
        IMPORTS.replace("from apache_beam.ml import inference", "import headrace.beam"),
        shell,
        "",
        "%%time\nheadrace.beam.RunInference(1)",
    ]
    changed = json.loads(moved.text)
    assert all(isinstance(cell["source"], str if as_text else list) for cell in changed["cells"][1:])
    assert changed["cells"][0] == given["cells"][0]


@pytest.mark.parametrize("layout", [{"indent": 1}, {"indent": 2, "ensure_ascii": False}, {}])
@pytest.mark.parametrize("end", ["", "\n"])
def test_layout_stays(layout, end):
    before, after = (
        json.dumps(notebook(f"from {module} import RunInference"), **layout) + end
        for module in ("apache_beam.ml.inference", "headrace.beam")
    )
    assert migrate_notebook(before).text == after
    assert migrate_notebook(after).text == after


def test_findings_name_the_cell_and_its_line():
    given = notebook("x = 1", "y = 2\nfrom apache_beam.ml.inference.base import *")
    (finding,) = migrate_notebook(json.dumps(given)).findings
    assert finding.message.startswith("import * from Beam's package stays")
    assert (finding.place, finding.needs_person) == (": code cell 2, line 2", True)


def test_cell_that_is_no_python_does_not_stop_the_others():
    moved = migrate_notebook(json.dumps(notebook("from apache_beam.ml.inference import RunInference", "x = (!ls")))
    assert sources(moved.text) == ["from headrace.beam import RunInference", "x = (!ls"]
    (finding,) = moved.findings
    assert (finding.message, finding.place) == ("cannot be parsed, and is left as it is.", ": code cell 2")
    assert finding.needs_person


NOT_PYTHON = "this is not read as Python, and names Beam's package: write Headrace's."


@pytest.mark.parametrize("first", ["!pip list", "%%writefile main.py"])
def test_what_is_no_python_and_names_beams_package_is_found(first):
    cell = f"{first}\n!python -c 'from apache_beam.ml.inference.base import RunInference'"
    (finding,) = migrate_notebook(json.dumps(notebook(cell))).findings
    assert finding.message == NOT_PYTHON
    assert (finding.place, finding.needs_person) == (": code cell 1, line 2", True)


@pytest.mark.parametrize("text", ["apache_beam.ml", '{"worksheets": "apache_beam.ml"}'])
def test_what_is_no_notebook_is_said(text):
    moved = migrate_notebook(text)
    assert moved.text == text
    assert moved.findings[0].needs_person
