"""One thread waits for what another works out; Ctrl-C may end the wait anywhere."""

import sys
import threading

import pytest

from headrace.hosts.pending import Pending


def in_thread(pending, work):
    thread = threading.Thread(target=pending.run, args=[work])
    thread.start()
    return thread


def test_result_is_what_the_work_returned():
    pending, gate = Pending(), threading.Event()
    in_thread(pending, lambda: gate.wait() and 5)
    assert not pending.is_over()
    gate.set()
    assert pending.result() == 5
    assert not pending.is_over()


def test_result_raises_what_the_work_raised():
    pending = Pending()
    in_thread(pending, lambda: 1 / 0).join()
    assert pending.is_over()
    with pytest.raises(ZeroDivisionError):
        pending.result()


@pytest.mark.parametrize("instruction", range(9))
def test_interrupted_wait_lets_the_work_end(instruction):
    """An exception in any instruction of the wait, as Ctrl-C raises it."""
    pending, gate = Pending(), threading.Event()
    thread = in_thread(pending, gate.wait)
    seen = []

    def interrupt(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen.append(frame.f_lasti)
            if len(seen) > instruction:
                raise KeyboardInterrupt
            if len(seen) == 1:
                gate.set()  # else the wait may last
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        pending.result()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        gate.set()
    thread.join(60)
    assert not thread.is_alive()
    assert seen
