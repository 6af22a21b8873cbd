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


@pytest.mark.parametrize(
    ("columns", "name", "end"),
    [
        (COLUMNS, "ID", "'ID'; did you mean 'id'? The columns are id, pixel_1, pixel_0, label, x[1]."),
        (COLUMNS, "pixels_*", "; did you mean 'pixel_1'? The columns are id, pixel_1, pixel_0, label, x[1]."),
        (COLUMNS, "lable", "; did you mean 'label'? The columns are id, pixel_1, pixel_0, label, x[1]."),
        (COLUMNS, "weight", "'weight'; the columns are id, pixel_1, pixel_0, label, x[1]."),
        (["a;b"], "weight", "; if its fields are separated otherwise, add --delimiter ';'."),
        (["a\tb"], "weight", "; if its fields are separated otherwise, add --delimiter $'\\t'."),
        (["1.5", "2"], "weight", "These are numbers: the first line of a CSV file has to name its columns."),
        (["a", "2"], "weight", "the columns are a, 2."),
        ([f"c{n}" for n in range(785)], "weight", ", c18, c19 and 765 more."),
    ],
)
def test_a_name_that_matches_no_column_is_an_error_that_says_what_may_be_wrong(columns, name, end):
    with pytest.raises(ConfigurationError) as caught:
        choose("--keep", [f"{columns[0]},{name}"], columns)
    assert str(caught.value).startswith(f"--keep: there is no column {name!r}")
    assert str(caught.value).endswith(end)
