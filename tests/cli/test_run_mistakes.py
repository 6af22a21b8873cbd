"""Every mistake is reported in one line, with the right exit code, and leaves all files as they were."""

import os
import shlex

import pytest

from headrace.cli.columns import about_failures

ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.fixture(autouse=True)
def _files(folder):
    """Inputs, and an output of an earlier run that must survive."""
    folder.write("in.jsonl", ROWS)
    folder.write("in.csv", "a,b\n1,2\n")
    folder.write("long.csv", "a,b\n" + "1,2\n" * 1000)
    folder.write("broken.jsonl", '{"a": 1\n')
    folder.write("twice.csv", "a,a\n1,2\n")
    folder.write("prediction.jsonl", [{"a": 1, "prediction": 2}])
    folder.write("p.jsonl", "old\n")


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
def test_mistaken_inputs_are_named(mistake, inputs, error):
    assert error in mistake(inputs=inputs)


@pytest.mark.parametrize(
    ("handler", "words", "error"),
    [
        ("builtins:dict", [], "{} is no model handler"),
        ("keyed", [], "KeyedModelHandler takes keys; name their column with --key (in Python, key=)."),
        ("Unpicklable", ["--isolate"], "cannot pickle 'generator' object"),
        ("Unpicklable", ["--runner=FnApiRunner"], "cannot pickle 'generator' object"),
    ],
)
def test_mistaken_handlers_are_named(mistake, handler, words, error):
    assert error in mistake(*words, handler=handler)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--columns a,c", "--columns: there is no column 'c'; the columns are a, b."),
        ("--columns ''", "--columns names no column; leave it out if the model is to see all of them."),
        ("--keep c*", "--keep: there is no column 'c*'; the columns are a, b."),
        ("--text-columns c", "--text-columns: there is no column 'c'"),
        ("--key c", "--key: there is no column 'c'"),
        ("--length-column c", "--length-column: there is no column 'c'; the columns are a, b."),
        ("--length-column a,b", "--length-column takes one column, not 'a,b'."),
        ("--key a", "Add takes no keys; leave --key out."),
        ("--handler-arg plus", "--handler-arg takes key=value, not 'plus'."),
        ("--handler-arg plus=1 --model x", "--model and --handler-arg plus are the same"),
        ("--inference-arg x=1", "Add takes no inference argument but times"),
        ("--inference-arg times=1 --inference-arg times=2", "--inference-arg times is given twice."),
        ("--max-batch-size many", "Invalid value for '--max-batch-size'"),
        ("--format xml", "Invalid value for '--format': 'xml' is not one of 'jsonl', 'csv', 'parquet', 'files'."),
        ("--delimiter ';;' in.csv", "--delimiter is one character, not ';;'"),
        (r"--delimiter '\t' in.csv", r"; a tab is $'\t' in a shell."),
        ("--types a=int --text-columns a in.csv", "column 'a' is int in --types, and in --text-columns"),
        ("--types a=integer in.csv", "--types: 'a=integer' names no type; did you mean 'int'?"),
        ("--types a in.csv", "--types: 'a' names no type; it takes COLUMN=TYPE."),
        ("--types m=int in.csv", "--types: there is no column 'm'"),
        ("--types a=int,a=float in.csv", "--types: column 'a' is float and int; choose one."),
        ("--types a=str", "--types sets the types of CSV files"),
        ("--colums a", "neither headrace nor Beam has an option --colums; did you mean '--columns'?"),
        pytest.param(
            "--direct_num_worker=4",
            "did you mean '--direct_num_workers'?",
            marks=pytest.mark.since_beam("2.77", reason="older versions take the beginning of an option's name"),
        ),
        ("--limit 5 --resume", "--limit is for a short run"),
        ("--limit 5 --runner FnApiRunner", "--limit is for a short run"),
        ("--limit 5 --direct_num_workers=2", "--limit is for a short run"),
        ("--stop-after 9 --resume", "leave --resume"),
        ("--threshold many", "'many' is no share of the rows; give 0.01 or 1%"),
        ("--threshold=1.5", "--threshold is a share of the rows, from 0 to 1 or 0% to 100%, not 1.5."),
        ("--threshold=nan", "--threshold is a share of the rows, from 0 to 1 or 0% to 100%, not nan."),
        ("--workers=0", "--workers is how many processes there are, or auto, not 0."),
        ("--workers=two", "'two' is no number of processes; give 4, or auto."),
        ("--workers=2 --limit=5", "leave --workers out"),
        ("--workers=2 --runner=FnApiRunner", "--workers are processes of this machine, without Beam"),
        ("--price m=1", "--price takes MODEL=INPUT,OUTPUT"),
        ("--price m=a,b", "--price takes MODEL=INPUT,OUTPUT"),
        ("--price m=1,-1", "at least 0"),
        ("--budget 5 --resume", "--budget needs --price MODEL=INPUT,OUTPUT"),
        ("--budget-per-row 5", "--budget-per-row needs --price MODEL=INPUT,OUTPUT"),
        ("--budget -5 --price m=1,1 --resume", "positive"),
        ("--budget 5 --price m=1,1", "go with --resume or --cache"),
        ("--budget-tokens 5", "go with --resume or --cache"),
        ("--cache s3://bucket/cache", "path of a file"),
        ("--output in.jsonl", "in.jsonl is among the inputs and would be overwritten; choose another --output."),
        ("--output in.csv/p.jsonl", "in.csv/p.jsonl: Not a directory; name a place where a file can be made."),
        ("--output gs://bucket/p.jsonl", "pip install 'apache-beam[gcp]'"),
        ("--output -", "--output - needs --dead-letters FILE"),
        ("--output - --dead-letters d.jsonl --resume", "leave --resume out, or name a file"),
        ("--output - --dead-letters d.jsonl --json", "--json prints on standard output"),
        ("--output-format csv", "--output-format is for --output -"),
        ("--prometheus run.txt", "run.txt"),
        ("--prometheus no/folder/run.prom", "no/folder/run.prom"),
        ("--prometheus 127.0.0.1:99999", "127.0.0.1:99999"),
    ],
)
def test_mistaken_options_are_named(mistake, words, error):
    assert error in mistake(*shlex.split(words))


@pytest.mark.parametrize(
    ("output", "letters", "error"),
    [
        ("p.jsonl", "link/p.jsonl", "--output and --dead-letters are the same file"),
        ("p.failed.jsonl", "p.jsonl", "where the dead letters go if too many rows fail"),
        ("pipe.jsonl", "q.jsonl", "pipe.jsonl is a pipe, a socket or a device"),
        ("q.jsonl", "pipe.jsonl", "--dead-letters must be a file"),
    ],
)
def test_an_output_has_a_place_of_its_own(mistake, folder, output, letters, error):
    """Otherwise one output would replace the other, or a file would replace a pipe that has a reader."""
    (folder.path / "link").symlink_to(".")
    os.mkfifo(folder.path / "pipe.jsonl")
    assert error in mistake("--output", output, "--dead-letters", letters)


@pytest.mark.parametrize(("name", "output"), [("link.jsonl", "in.jsonl"), ("in.jsonl", "link/in.jsonl")])
def test_an_input_under_another_name_is_not_overwritten(mistake, folder, name, output):
    """By the name of a link to it, or to its folder."""
    (folder.path / "link.jsonl").symlink_to("in.jsonl")
    (folder.path / "link").symlink_to(".")
    assert f"{output} is among the inputs and would be overwritten" in mistake("--output", output, inputs=[name])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "Missing argument 'INPUT'."),
        (
            "in.jsonl --output p.jsonl",
            "Missing option '--model': name the model's file, or with --handler one that `headrace handlers` lists",
        ),
        ("in.jsonl --handler x", "Missing option '--output': name the file for the predictions, for example"),
        ("in.jsonl --handler", "Option '--handler' requires an argument."),
    ],
)
def test_missing_parts_are_named(headrace, words, error):
    result = headrace("run", *words.split())
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


def test_a_model_that_cannot_be_loaded_is_named_with_its_option(folder, run):
    folder.write("../churn.h5", "no pickle")
    before = folder.contents()
    result = run("--handler", "sklearn-numpy", "--model", "../churn.h5", inputs=["in.csv"])
    assert (result.code, result.out, folder.contents()) == (1, "", before)
    assert result.error.startswith("sklearn-numpy cannot load --model ../churn.h5: ")
    assert result.error.endswith("the file is a model of Keras: --handler tensorflow-numpy")


@pytest.mark.parametrize(("first", "code"), [("in.csv", 2), ("long.csv", 1)])
def test_a_file_that_cannot_be_read_leaves_the_output(folder, run, first, code):
    """It is refused before the run if it is among the first 1,000 rows."""
    before = folder.contents()
    result = run(inputs=[first, "twice.csv"])
    assert (result.code, result.out, folder.contents()) == (code, "", before)
    assert "twice.csv as csv: the header has 'a' twice" in result.error


@pytest.mark.parametrize(("handler", "code"), [("Broken", 1), ("fails", 2)])
def test_verbose_shows_the_traceback(run, handler, code):
    result = run("--verbose", handler=handler)
    assert result.code == code
    assert "Traceback (most recent call last):" in result.err
    assert result.err.splitlines()[-1].startswith("error: ")
