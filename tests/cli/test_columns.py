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


def test_names_are_trusted_without_rows():
    assert choose("--columns", ["a,b*"], ()) == ("a", "b*")


@pytest.mark.parametrize("name", ["ID", "pixels_*", "x[2]"])
def test_a_name_that_matches_no_column_is_an_error(name):
    with pytest.raises(ConfigurationError) as caught:
        choose("--keep", [f"id,{name}"], COLUMNS)
    assert str(caught.value) == (
        f"--keep: there is no column {name!r}; the columns are id, pixel_1, pixel_0, label, x[1]."
    )
