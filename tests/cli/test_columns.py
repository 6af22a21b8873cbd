"""Names and globs mean columns; one that means none is an error that lists what there is."""

import pytest

from headrace.cli.columns import choose
from headrace.core.errors import ConfigurationError

COLUMNS = ("id", "pixel_1", "pixel_0", "label", "x[1]")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (None, None),
        ([""], ()),
        (["label,id"], ("label", "id")),
        (["pixel_*"], ("pixel_1", "pixel_0")),
        (["label", " pixel_? , id,label"], ("label", "pixel_1", "pixel_0", "id")),
        (["x[1]"], ("x[1]",)),
        (["*"], COLUMNS),
    ],
)
def test_names_keep_the_given_order_and_globs_that_of_the_file(asked, chosen):
    assert choose("--columns", asked, COLUMNS) == chosen
    assert choose("--columns", ["a,b*"], ()) == ("a", "b*"), "trusted without rows"


def error_of(name, columns):
    with pytest.raises(ConfigurationError) as caught:
        choose("--keep", [f"{columns[0]},{name}"], columns)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ID", "; did you mean 'id'? The"),
        ("pixels_*", "; did you mean 'pixel_1'? The"),
        ("lable", "; did you mean 'label'? The"),
        ("weight", "; the"),
    ],
)
def test_a_name_that_matches_no_column_is_an_error(name, meant):
    assert error_of(name, COLUMNS) == (
        f"--keep: there is no column {name!r}{meant} columns are id, pixel_1, pixel_0, label, x[1]."
    )


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (["a;b"], "; if its fields are separated otherwise, add --delimiter ';'."),
        (["a\tb"], "; if its fields are separated otherwise, add --delimiter $'\\t'."),
        (["1.5", "2"], "These are numbers: the first line of a CSV file has to name its columns."),
        (["a", "2"], "the columns are a, 2."),
        ([f"c{n}" for n in range(785)], ", c18, c19 and 765 more."),
    ],
)
def test_columns_of_a_file_that_was_read_wrongly_are_recognized(columns, hint):
    assert error_of("weight", columns).endswith(hint)
