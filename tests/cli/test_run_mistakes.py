"""Every mistake is reported in one line, with the right exit code, and leaves the output as it was."""

import os

import pytest

from headrace.cli.columns import about_failures

ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.fixture
def old(folder):
    """Inputs, and an output of an earlier run that must survive."""
    folder.write("in.jsonl", ROWS)
    folder.write("in.csv", "a,b\n1,2\n")
    folder.write("long.csv", "a,b\n" + "1,2\n" * 1000)
    folder.write("broken.jsonl", '{"a": 1\n')
    folder.write("twice.csv", "a,a\n1,2\n")
    folder.write("prediction.jsonl", [{"a": 1, "prediction": 2}])
    folder.write("p.jsonl", "old\n")
    before = folder.names()
    yield folder
    assert folder.names() == before
    assert (folder.path / "p.jsonl").read_text() == "old\n"


@pytest.fixture
def mistaken(old, handlers, headrace):
    """Runs Add over in.jsonl into p.jsonl, but for the arguments given; the error of a misuse."""

    def call(*arguments, inputs=("in.jsonl",), handler="{}:Add", output="p.jsonl"):
        options = ("--handler", handler.format(handlers), "--output", output)
        result = headrace("run", *inputs, *options, *arguments)
        assert (result.code, result.out) == (2, "")
        return result.error

    return call


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (["absent.csv"], "there is no file 'absent.csv'."),
        (["broken.jsonl"], "line 1: Expecting ',' delimiter"),
        (["", "in.csv"], "an INPUT has no name (''); is a variable of the shell empty?"),
        (
            ["s3://bucket/a.csv"],
            "Beam's part for Amazon S3 is not installed; install it with: pip install 'apache-beam[aws]'",
        ),
        (["prediction.jsonl"], "the input has a column 'prediction', where the prediction goes"),
        (["--streaming"], "no INPUT is given"),
    ],
)
def test_mistaken_inputs_are_named(mistaken, inputs, error):
    assert error in mistaken(inputs=inputs)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        ("builtins:dict", "{{}} is no model handler"),
        ("{}:keyed", "KeyedModelHandler takes keys; name their column with --key (in Python, key=)."),
    ],
)
def test_mistaken_handlers_are_named(mistaken, handler, error):
    assert error.format() in mistaken(handler=handler)


@pytest.mark.parametrize("argument", ["--isolate", "--runner=FnApiRunner"])
def test_a_handler_that_does_not_pickle_stays_in_this_process(mistaken, argument):
    assert "cannot pickle 'generator' object" in mistaken(argument, handler="{}:Unpicklable")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--columns", "a,c"], "--columns: there is no column 'c'; the columns are a, b."),
        (["--columns", ""], "--columns names no column; leave it out if the model is to see all of them."),
        (["--keep", "c*"], "--keep: there is no column 'c*'; the columns are a, b."),
        (["--text-columns", "c"], "--text-columns: there is no column 'c'"),
        (["--key", "c"], "--key: there is no column 'c'"),
        (["--length-column", "c"], "--length-column: there is no column 'c'; the columns are a, b."),
        (["--length-column", "a,b"], "--length-column takes one column, not 'a,b'."),
        (["--key", "a"], "Add takes no keys; leave --key out."),
        (["--handler-arg", "plus"], "--handler-arg takes key=value, not 'plus'."),
        (["--handler-arg", "plus=1", "--model", "x"], "--model and --handler-arg plus are the same"),
        (["--inference-arg", "x=1"], "Add takes no inference argument but times"),
        (["--inference-arg", "times=1", "--inference-arg", "times=2"], "--inference-arg times is given twice."),
        (["--max-batch-size", "many"], "Invalid value for '--max-batch-size'"),
        (["--format", "xml"], "Invalid value for '--format': 'xml' is not one of 'jsonl', 'csv', 'parquet', 'files'."),
        (["--delimiter", ";;", "in.csv"], "--delimiter is one character, not ';;'"),
        (["--delimiter", "\\t", "in.csv"], "; a tab is $'\\t' in a shell."),
        (["--types", "a=int", "--text-columns", "a", "in.csv"], "column 'a' is int in --types, and in --text-columns"),
        (["--colums", "a"], "neither headrace nor Beam has an option --colums; did you mean '--columns'?"),
        pytest.param(
            ["--direct_num_worker=4"],
            "did you mean '--direct_num_workers'?",
            marks=pytest.mark.since_beam("2.77", reason="older versions take the beginning of an option's name"),
        ),
    ],
)
def test_mistaken_options_are_named(mistaken, arguments, error):
    assert error in mistaken(*arguments)


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("in.jsonl", "in.jsonl is among the inputs and would be overwritten; choose another --output."),
        ("in.csv/p.jsonl", "in.csv/p.jsonl: Not a directory; name a place where a file can be made."),
        ("gs://bucket/p.jsonl", "pip install 'apache-beam[gcp]'"),
    ],
)
def test_mistaken_outputs_are_named(mistaken, output, error):
    assert error in mistaken(output=output)


@pytest.mark.parametrize(
    ("output", "letters", "error"),
    [
        ("p.jsonl", "link/p.jsonl", "--output and --dead-letters are the same file"),
        ("p.failed.jsonl", "p.jsonl", "where the dead letters go if too many rows fail"),
        ("pipe.jsonl", "q.jsonl", "pipe.jsonl is a pipe, a socket or a device"),
        ("q.jsonl", "pipe.jsonl", "--dead-letters must be a file"),
    ],
)
def test_an_output_has_a_place_of_its_own(headrace, handlers, folder, output, letters, error):
    """Otherwise one output would replace the other, or a file would replace a pipe that has a reader."""
    folder.write("in.jsonl", ROWS)
    (folder.path / "link").symlink_to(".")
    os.mkfifo(folder.path / "pipe.jsonl")
    before = folder.names()
    arguments = ("--handler", f"{handlers}:Add", "--output", output, "--dead-letters", letters)
    result = headrace("run", "in.jsonl", *arguments)
    assert result.code == 2
    assert error in result.error
    assert folder.names() == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "Missing argument 'INPUT'."),
        (
            ["in.jsonl", "--output", "p.jsonl"],
            "Missing option '--model': name the model's file, or with --handler one that `headrace handlers` lists",
        ),
        (["in.jsonl", "--handler", "x"], "Missing option '--output': name the file for the predictions, for example"),
        (["in.jsonl", "--handler"], "Option '--handler' requires an argument."),
    ],
)
def test_missing_parts_are_named(old, headrace, arguments, error):
    result = headrace("run", *arguments)
    assert (result.code, result.out) == (2, "")
    assert error in result.error


@pytest.mark.parametrize(
    ("stages", "columns", "hint"),
    [
        (["inference"], ("a",), " The model was given the column a; if it needs others, name them with --columns."),
        (
            ["inference"],
            ("a;b",),
            "The file has one column only; if its fields are separated otherwise, add --delimiter",
        ),
        (["reading"], (), " No row could be read: "),
        (["postprocessing", "writing"], ("a",), ""),
    ],
)
def test_what_may_be_wrong_with_the_input_is_said_when_every_row_failed(stages, columns, hint):
    said = about_failures([(stage, "ValueError") for stage in stages], columns)
    assert hint in said
    assert bool(said) is bool(hint)


def test_a_model_that_cannot_be_loaded_is_named_with_its_option(old, headrace):
    (old.path.parent / "churn.h5").write_text("no pickle")
    arguments = ("--handler", "sklearn-numpy", "--model", "../churn.h5", "--output", "p.jsonl")
    result = headrace("run", "in.csv", *arguments)
    assert (result.code, result.out) == (1, "")
    assert result.error.startswith("sklearn-numpy cannot load --model ../churn.h5: ")
    assert result.error.endswith("the file is a model of Keras: --handler tensorflow-numpy")


@pytest.mark.parametrize(("first", "code"), [("in.csv", 2), ("long.csv", 1)])
def test_a_file_that_cannot_be_read_leaves_the_output(old, headrace, handlers, first, code):
    """It is refused before the run if it is among the first 1,000 rows."""
    result = headrace("run", first, "twice.csv", "--handler", f"{handlers}:Add", "--output", "p.jsonl")
    assert (result.code, result.out) == (code, "")
    assert "twice.csv as csv: the header has 'a' twice" in result.error


@pytest.mark.parametrize(("handler", "code"), [("Broken", 1), ("fails", 2)])
def test_verbose_shows_the_traceback(old, headrace, handlers, handler, code):
    result = headrace("run", "in.jsonl", "--handler", f"{handlers}:{handler}", "--output", "p.jsonl", "--verbose")
    assert result.code == code
    assert "Traceback (most recent call last):" in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(("name", "output"), [("link.jsonl", "in.jsonl"), ("in.jsonl", "link/in.jsonl")])
def test_an_input_under_another_name_is_not_overwritten(headrace, handlers, folder, name, output):
    """By the name of a link to it, or to its folder."""
    folder.write("in.jsonl", ROWS)
    (folder.path / "link.jsonl").symlink_to("in.jsonl")
    (folder.path / "link").symlink_to(".")
    result = headrace("run", name, "--handler", f"{handlers}:Add", "--output", output)
    assert result.code == 2
    assert f"{output} is among the inputs and would be overwritten" in result.error
    assert folder.rows("in.jsonl") == ROWS
