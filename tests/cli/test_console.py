"""Errors take one line; Beam's log stays away unless it is asked for; signals become KeyboardInterrupt."""

import io
import logging
import os
import signal
import warnings

import pytest
from rich.console import Console

from headrace.cli.console import Signals, console_logging, report_error


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


def test_warnings_are_short_and_beams_log_stays_away_unless_it_is_asked_for(console, screen):
    with console_logging(console, verbose=False):
        log_and_warn()
    assert screen.getvalue() == "warning: shop: of the user\nUserWarning: have a care\n"
    with console_logging(console, verbose=True):
        log_and_warn()
    assert "error: apache_beam.runners: of Beam\n" in screen.getvalue()
    assert "info: shop: details\n" in screen.getvalue()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_interrupts_and_is_remembered(number, code):
    before = signal.getsignal(number)
    with Signals() as signals:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert (signals.received, signals.exit_code) == ([number], code)
        signals.heeded = False
        os.kill(os.getpid(), number)
        assert signals.received == [number] * 2
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_log_is_left_as_it_was(console):
    root, shown = logging.getLogger(), warnings.showwarning
    before = (root.level, list(root.handlers))
    with pytest.raises(RuntimeError), console_logging(console, verbose=True):
        raise RuntimeError
    assert (root.level, list(root.handlers)) == before
    assert warnings.showwarning is shown
