"""``headrace.toml``: options as if they had been typed, unless others are."""

import pytest

ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.fixture
def project(folder, handlers):
    """Writes a file of options, with a handler and an output, beside rows."""
    folder.write("in.jsonl", ROWS)

    def settings(text, name="headrace.toml", command="run", handler="Add", output='output = "p.jsonl"'):
        folder.write(name, f'[{command}]\nhandler = "{handlers}:{handler}"\n{output}\n{text}')

    return settings


def predictions(folder, name="p.jsonl"):
    return [row["prediction"] for row in folder.rows(name)]


def test_options_of_the_current_folder_hold(project, folder, headrace):
    project('columns = ["a", "b"]\nkeep = ""\nmax-batch-size = 1\nhandler-arg = { plus = 10 }\n')
    result = headrace("run", "in.jsonl", "--verbose")
    assert result.code == 0
    assert folder.rows("p.jsonl") == [{"prediction": 13}, {"prediction": 17}]
    assert (result.summary["batches"], result.summary["options from"]) == ("2", "headrace.toml")


def test_the_command_line_wins(project, folder, headrace):
    project("handler-arg = { plus = 10 }\nisolate = true\n")
    options = ("--output", "q.jsonl", "--handler-arg", "plus=20", "--no-isolate")
    assert headrace("run", "in.jsonl", *options).code == 0
    assert predictions(folder, "q.jsonl") == [23, 27]


@pytest.mark.parametrize("model", ["weights", "org/bert"])
def test_paths_are_relative_to_the_file(project, folder, headrace, model):
    """A model that is no file of its folder is an id."""
    folder.write("shared/weights", "")
    output = 'output = "out/p.jsonl"\ndead-letters = "bad.jsonl"'
    project(f'model = "{model}"\n', "shared/headrace.toml", handler="late", output=output)
    folder.write("in.jsonl", [*ROWS, {"prediction": 1}])
    assert headrace("run", "in.jsonl", "--config", "shared/headrace.toml").code == 0
    found = "shared/weights" if model == "weights" else model
    assert predictions(folder, "shared/out/p.jsonl") == [found] * 2
    assert (folder.path / "shared" / "bad.jsonl").exists()


def test_each_command_has_a_table_of_its_own(project, folder, headrace):
    project("handler-arg = { plus = 10 }\n", command="retry")
    assert "Missing option '--model'" in headrace("run", "in.jsonl").error
    folder.write("letters.jsonl", [{"row": ROWS[0], "stage": "inference", "message": "m", "attempts": 1}])
    assert headrace("retry", "letters.jsonl").code == 0
    assert predictions(folder) == [13]


def test_a_resumed_run_takes_options_of_the_file_as_if_typed(project, folder, headrace, run):
    project("handler-arg = { plus = 10 }\nresume = true\nthreshold = 0.4\n")
    folder.write("in.jsonl", [*ROWS, {"a": "x", "b": 1}])
    assert headrace("run", "in.jsonl").code == 0
    folder.write("in.jsonl", [*ROWS, {"a": "x", "b": 1}, {"a": "y", "b": 1}])
    assert headrace("run", "in.jsonl").code == 3
    project("handler-arg = { plus = 11 }\nresume = true\nthreshold = 1\n")
    assert "--handler-arg plus" in headrace("run", "in.jsonl").error
    (folder.path / "headrace.toml").unlink()
    result = run("--handler-arg", "plus=10", "--resume", "--threshold", "1")
    assert (result.code, result.summary["done before"]) == (0, "4")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('colums = "a"', "headrace.toml: [run] has no option 'colums'; did you mean 'columns'?"),
        ("max_batch_size = 1", "headrace.toml: [run] has no option 'max_batch_size'; did you mean 'max-batch-size'?"),
        ("isolate = 1", "headrace.toml: [run] isolate: it is true or false, not 1."),
        ("key = true", "headrace.toml: [run] key: it takes a value, not True."),
        ('key = ["a"]', "headrace.toml: [run] key: it takes one value, not ['a']."),
        ("columns = { a = 1 }", "headrace.toml: [run] columns: it takes one value, or a list of values, not {'a': 1}."),
        ('max-batch-size = "many"', "headrace.toml: [run] max-batch-size: "),
        ('placement = "proces"', "headrace.toml: [run] placement: 'proces' is not one of 'process', 'machine', 'auto'"),
        ("x = ", "cannot read headrace.toml: Invalid value (at "),
        ("[elsewhere]", "headrace.toml: there is no table [elsewhere]; there are [run], [retry], [doctor]."),
    ],
)
def test_mistakes_in_the_file_are_named(project, headrace, text, error):
    project(text)
    result = headrace("run", "in.jsonl")
    assert (result.code, result.out) == (2, "")
    assert error in result.error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "headrace.toml: 'model' stands in no table; put options under [run], [retry], [doctor]."),
        (["--config", "none.toml"], "there is no file 'none.toml'."),
    ],
)
def test_a_file_without_tables_or_none_is_named(folder, headrace, arguments, error):
    folder.write("headrace.toml", 'model = "m"\n')
    result = headrace("doctor", *arguments)
    assert (result.code, result.error) == (2, error)


def test_a_text_that_looks_like_a_number_stays_text(project, folder, headrace):
    project('handler-arg = { plus = "10" }\n')
    assert headrace("run", "in.jsonl").code == 3
    assert "unsupported operand" in folder.rows("p.dead-letters.failed.jsonl")[0]["message"]


def test_help_needs_no_file(folder, headrace):
    folder.write("headrace.toml", "[run]\nbroken\n")
    assert headrace("run", "--help").code == 0


@pytest.mark.parametrize("given", ['"zip=str,when=date"', '{zip = "str", when = "date"}'])
def test_types_come_from_headrace_toml(folder, run, given):
    folder.write("in.csv", "when,zip,on\n2024-02-29,10001,True\n2024-03-01,10002,False\n")
    folder.write("headrace.toml", f"[run]\ntypes = {given}\n")
    assert run("--columns", "on", handler="bare", inputs=["in.csv"]).code == 0
    first, second = folder.rows("p.jsonl")
    assert first == {"when": "2024-02-29", "zip": "10001", "on": True, "prediction": True}
    assert second["on"] is False
