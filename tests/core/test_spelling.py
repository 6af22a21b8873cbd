"""Mistyped names find the one that was meant, and no other."""

import os

import pytest

from headrace.core.spelling import did_you_mean, nearest, no_file

KNOWN = ("columns", "Keep", "text-columns", "model")


@pytest.mark.parametrize(
    ("name", "meant"), [("colums", "columns"), ("KEEP", "Keep"), ("modle", "model"), ("x", None), ("placement", None)]
)
def test_the_nearest_name_is_found_whatever_its_case(name, meant):
    assert nearest(name, KNOWN) == meant
    assert did_you_mean(name, KNOWN) == (f"; did you mean {meant!r}?" if meant else ".")


def test_a_file_that_is_not_there_is_answered_with_its_neighbour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "churn.pkl").touch()
    assert no_file("data/chrun.pkl") == "there is no file 'data/chrun.pkl'; did you mean 'data/churn.pkl'?"
    assert no_file("data/other.pkl") == "there is no file 'data/other.pkl'."  # only the extension is alike
    assert no_file("date/churn.pkl") == "there is no file 'date/churn.pkl', nor a folder 'date'."


def test_a_folder_that_may_not_be_listed_has_no_neighbours(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert no_file(str(tmp_path / "a.csv")).endswith("a.csv'.")
