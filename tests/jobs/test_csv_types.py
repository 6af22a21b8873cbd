"""Columns of CSV files have one type each, and a cell that does not fit it costs its row."""

from datetime import date, datetime, timezone

import pytest

from headrace.jobs.files import Source, match
from headrace.jobs.reading import infer_schema, read_rows


def rows_of(path):
    (source,) = match([path])
    return list(read_rows(source, infer_schema([source]).csv))


def test_types_that_the_first_rows_have(write):
    """One cell that would not be written as it was makes a column text; one mistake does not."""
    columns = {
        "int": ["0", "-12", "", "7"],
        "float": ["1", "2.50", "1e5", ".5"],
        "bool": ["True", "false", "", "TRUE"],
        "zip": ["10001", "00501", "94110", "1"],
        "sku": ["1E5", "2E7", "31", "44"],
        "phone": ["+4930", "4940", "", "+17"],
        "plate": ["12", "34", "A5", "B6"],
        "year": ["2024", "2025", "", "2023"],
        "id": ["2024_01", "2_2", "", "1"],
        "long": ["1.5", "9007199254740993", "9007199254740995", "2.5"],
        "day": ["2024-01-01", "2024-01-02", "", "2024-01-03"],
        "nothing": ["", "", "", ""],
        "mixed": ["7", "8", "", "x"],
    }
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    write("a.csv", "\n".join(lines) + "\n")
    typed = {"int": "int", "float": "float", "bool": "bool", "year": "int", "mixed": "int"}
    assert infer_schema(match(["a.csv"])).csv == dict.fromkeys(columns, "str") | typed
    *rows, wrong = rows_of("a.csv")
    assert [list(row.values())[:4] for row in rows] == [
        [0, 1.0, True, "10001"],
        [-12, 2.5, False, "00501"],
        [None, 100000.0, None, "94110"],
    ]
    assert "column 'mixed' holds 'x', which does not fit its type, int" in str(wrong.error)


def test_numbers_with_a_decimal_comma_between_semicolons(write):
    columns = {
        "price": ["1,50", "", "-0,5", "3", "7,"],
        "thousands": ["1,234", "2", "12,345", "", "1,000"],
        "points": ["1.5", "2.5", "", "3", "1e3"],
        "codes": ["01,5", "2,5", "", "3,5", "4,5"],
    }
    lines = [";".join(row) for row in zip(*columns.values(), strict=True)]
    write("a.csv", "\n".join([";".join(columns), *lines, "1.5;1;1;1", "1,5e2;1;1;1\n"]))
    (source,) = match(["a.csv"], delimiter=";")
    schema = infer_schema([source])
    assert schema.csv == {"price": "comma_float", "thousands": "str", "points": "float", "codes": "str"}
    assert schema.types["price"] == "float"
    *first, wrong, last = read_rows(source, schema.csv)
    assert [row["price"] for row in [*first, last]] == [1.5, None, -0.5, 3.0, 7.0, 150.0]
    assert "column 'price' holds '1.5', which does not fit its type, comma_float" in str(wrong.error)
    write("b.csv", 'price\n"1,50"\n"2,50"\n')
    assert infer_schema(match(["b.csv"])).csv == {"price": "str"}
    assert list(read_rows(*match(["b.csv"]), {"price": "comma_float"})) == [{"price": 1.5}, {"price": 2.5}]


@pytest.mark.parametrize(
    ("kind", "field", "cure"),
    [
        ("int", "00501", "str"),
        ("int", "1.5", "float"),
        ("int", "+4930", "str"),
        ("int", "oops", "str"),
        ("float", "01.5", "str"),
        ("float", "1e400", "str"),
        ("bool", "yes", "str"),
        ("date", "2024-02-30", "str"),
        ("datetime", "2024-02-01 25:00", "str"),
    ],
)
def test_a_cell_that_does_not_fit_names_the_option(write, kind, field, cure):
    path = write("a.csv", f"n,x\n,1\n{field},2\n")
    good, wrong = read_rows(Source(path, "csv"), {"n": kind, "x": "int"})
    assert good == {"n": None, "x": 1}
    expected = f"column 'n' holds '{field}', which does not fit its type, {kind}; to change that, add --types n={cure}"
    assert (wrong.line, wrong.number, str(wrong.error)) == (f"{field},2", 3, expected)


def test_dates_and_times_that_the_user_asks_for(write):
    path = write("a.csv", "day,moment\n2024-02-29,2024-02-29 10:00:00.25\n,2024-02-29T10:00Z\n")
    first, second = read_rows(Source(path, "csv"), {"day": "date", "moment": "datetime"})
    assert first == {"day": date(2024, 2, 29), "moment": datetime(2024, 2, 29, 10, 0, 0, 250000)}
    assert second == {"day": None, "moment": datetime(2024, 2, 29, 10, 0, tzinfo=timezone.utc)}


def test_quotes_that_a_field_does_not_need_say_that_it_is_text(write):
    path = write("a.csv", 'zip,n,text,both\n"00501",1,"",\n"5",2,,"7"\n"7",,"5",8\n')
    assert infer_schema(match(["a.csv"])).csv == {"zip": "str", "n": "int", "text": "str", "both": "str"}
    assert [list(row.values()) for row in rows_of(path)] == [
        ["00501", 1, "", None],
        ["5", 2, None, "7"],
        ["7", None, "5", "8"],
    ]


def test_quotes_say_nothing_where_all_fields_have_them(write):
    """As some programs write files."""
    path = write("a.csv", '"n","x","t"\n"1","2.5","a"\n"2","",""\n"3",,\n')
    assert infer_schema(match(["a.csv"])).csv == {"n": "int", "x": "float", "t": "str"}
    assert [list(row.values()) for row in rows_of(path)] == [[1, 2.5, "a"], [2, None, ""], [3, None, None]]


def test_quotes_that_a_field_needs_say_nothing(write):
    path = write("a.csv", "n\n" + "1\n" * 30 + '"1,5"\n')
    assert infer_schema(match(["a.csv"])).csv == {"n": "int"}
    *_, wrong = rows_of(path)
    assert "does not fit its type, int" in str(wrong.error)


def test_lists_and_objects(write):
    path = write("a.csv", 'v,o,t\n"[1, 2.5]","{""a"": null}","[deleted]"\n[],,{}\n')
    assert infer_schema(match(["a.csv"])).csv == {"v": "json", "o": "json", "t": "str"}
    assert [list(row.values()) for row in rows_of(path)] == [[[1, 2.5], {"a": None}, "[deleted]"], [[], None, "{}"]]
    good, wrong = read_rows(Source(write("b.csv", 'v\n[1]\n"{""a"":1,""a"":2}"\n'), "csv"), {"v": "json"})
    assert good == {"v": [1]}
    assert str(wrong.error).endswith("add --types v=str")
