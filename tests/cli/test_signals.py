"""Signals become KeyboardInterrupt, are remembered, and afterwards are handled as before."""

import os
import signal
import threading

import pytest

from headrace.cli.signals import Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_interrupts_and_is_remembered(number, code):
    before = signal.getsignal(number)
    with Signals() as signals:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert (signals.received, signals.exit_code) == ([number], code)
    assert signal.getsignal(number) is before


def test_a_signal_that_is_not_heeded_is_only_recorded():
    with Signals() as signals:
        signals.heeded = False
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == [signal.SIGINT]


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_are_unchanged_outside_the_main_thread():
    seen = []

    def run():
        with Signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
