"""What is most likely wrong when nothing was predicted is said, and only then."""

import pytest

from headrace.cli.hints import about_columns, about_failures, about_model, misplaced

PICKLE = "; sklearn-numpy takes a pickle, or with --handler-arg model_file_type=joblib or skops a file of those"
SAVED = "the file is a model of Keras: --handler tensorflow-numpy"


@pytest.mark.parametrize(
    ("handler", "model", "hint"),
    [
        ("sklearn-numpy", "churn.h5", f"{PICKLE}; {SAVED}"),
        ("onnx-numpy", "churn.h5", f"; onnx-numpy takes an ONNX file; {SAVED}"),
        ("onnx-numpy", "gs://b/churn.h5", "; onnx-numpy takes an ONNX file"),
        ("sklearn-numpy", "churn.onnx", PICKLE),
        ("sklearn-numpy", "churn", PICKLE),
        ("vllm-chat", "churn.h5", ""),
        ("my_model:make", "churn.h5", ""),
    ],
)
def test_a_file_of_another_framework_is_recognized(folder, handler, model, hint):
    folder.write("churn.h5", "weights")
    folder.write("churn.onnx", "damaged")
    assert about_model(handler, model) == hint


@pytest.mark.parametrize(
    ("columns", "chosen", "hint"),
    [
        ((), False, ""),
        (("a",), True, " The model was given the column a; if it needs others, name them with --columns."),
        (
            ("a;b",),
            False,
            " The model was given the column a;b; choose its columns with --columns. The file has one column only; "
            "if its fields are separated otherwise, add --delimiter ';'.",
        ),
        (("a", "b"), False, " The model was given the 2 columns a, b; choose its columns with --columns."),
    ],
)
def test_the_columns_that_the_model_was_given_are_named(columns, chosen, hint):
    assert about_columns(columns, chosen=chosen) == hint


def test_columns_are_not_to_blame_for_what_comes_after_the_model():
    after = {("postprocessing", "AttributeError"), ("writing", "ValueError")}
    assert about_failures(after, ("a", "b"), chosen=False, retried=False) == ""


def test_a_model_that_cannot_be_loaded_is_named_with_its_option(folder, headrace):
    folder.write("in.csv", "a,b\n1,2\n")
    folder.write("churn.h5", "no pickle")
    arguments = ("--handler", "sklearn-numpy", "--model", "churn.h5", "--output", "p.jsonl")
    result = headrace("run", "in.csv", *arguments)
    assert (result.code, result.out) == (1, "")
    assert result.error.startswith("sklearn-numpy cannot load --model churn.h5: ")
    assert result.error.endswith(SAVED)


@pytest.mark.parametrize(
    ("words", "columns", "hint"),
    [
        (["in.csv", "--streaming", "absent.csv"], ["a"], None),
        (["in.csv"], None, None),
        (["in.csv", "b"], None, None),
        (["in.csv", "b"], ["a"], "if it is a column, separate columns by commas: --columns a,b."),
        (["y=2"], None, "there is no file 'y=2'; if it is for the handler, repeat the option: --handler-arg y=2."),
        (
            ["--input=in.csv"],
            None,
            "there is no option --input; name the files without an option: headrace run FILE ...",
        ),
        (["--device", "GPU"], None, "there is no option --device; it is the handler's: --handler-arg device=GPU."),
        (["--workers=4"], None, "--direct_num_workers=4 --direct_running_mode=multi_processing."),
        (["--limit", "8"], None, "head -n 100 FILE > some.jsonl"),
        (["--batch-size", "8"], None, "write --max-batch-size, and --min-batch-size for the fewest."),
    ],
)
def test_words_that_are_no_inputs_are_recognized(folder, words, columns, hint):
    folder.write("in.csv", "")
    found = misplaced(words, columns, has_pairs="=" in words[0])
    assert (found is None) if hint is None else hint in found


def test_a_column_behind_a_blank_is_named(folder, headrace):
    folder.write("in.csv", "a,b\n1,2\n")
    result = headrace("run", "in.csv", "--handler", "x:y", "--output", "p.jsonl", "--columns", "a", "b")
    assert result.error == ("there is no file 'b'; if it is a column, separate columns by commas: --columns a,b.")
