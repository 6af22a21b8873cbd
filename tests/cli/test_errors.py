"""Errors take one line, and Beam's log stays away unless it is asked for."""

import io
import logging
import warnings

import pytest
from rich.console import Console

from headrace.cli.errors import console_logging, report_error


@pytest.fixture
def screen():
    return io.StringIO()


@pytest.fixture
def console(screen):
    return Console(file=screen, width=40)


def test_an_error_is_one_line_however_long(console, screen):
    report_error(console, "there is [no] such\n  file: " + "x" * 100)
    assert screen.getvalue() == f"error: there is [no] such file: {'x' * 100}\n"


def log_and_warn():
    logging.getLogger("apache_beam.runners").error("of Beam")
    logging.getLogger("shop").warning("of %s", "the user")
    logging.getLogger("shop").info("details")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("have a care", UserWarning, stacklevel=2)


def test_warnings_are_short_and_beams_log_stays_away(console, screen):
    with console_logging(console, verbose=False):
        log_and_warn()
    assert screen.getvalue() == "warning: shop: of the user\nUserWarning: have a care\n"


def test_beams_log_comes_when_asked_for(console, screen):
    with console_logging(console, verbose=True):
        log_and_warn()
    assert "error: apache_beam.runners: of Beam\n" in screen.getvalue()
    assert "info: shop: details\n" in screen.getvalue()


def test_warnings_of_beam_stay_away_unless_asked_for(console, screen):
    for verbose in (False, True):
        with console_logging(console, verbose=verbose):
            warnings.showwarning("old Python", FutureWarning, "/env/apitools/base.py", 1)
            warnings.showwarning("old model", UserWarning, "/home/shop/handlers.py", 1)
    assert screen.getvalue() == "UserWarning: old model\nFutureWarning: old Python\nUserWarning: old model\n"


def test_the_log_is_left_as_it_was(console):
    root, shown = logging.getLogger(), warnings.showwarning
    before = (root.level, list(root.handlers))
    with pytest.raises(RuntimeError), console_logging(console, verbose=True):
        raise RuntimeError
    assert (root.level, list(root.handlers)) == before
    assert warnings.showwarning is shown
