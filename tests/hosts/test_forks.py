"""An owner may be forked: what its fork does, and whether it lives on, is nothing to the owner's hosts."""

from __future__ import annotations

import os
import signal

import pytest

from toy_hosts import has_ended

FORKS = """
import traceback
host = new_host()
def both(host):
    return host.learn(lambda rows, toy: (os.getpid(), os.getppid()))
before = both(host)
def in_child(work, leave=os._exit):
    child = os.fork()
    if not child:
        code = 1
        try:
            work and work()
            code = 0
        except BaseException:
            traceback.print_exc()
        leave(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

QUIET = """
(None, os._exit),
(None, sys.exit),
(host.close, os._exit),
(lambda: globals().pop("host"), sys.exit),
(lambda: (lambda other: (both(other), other.close()))(new_host()), os._exit),
(lambda: (both(host), host.close()), os._exit),
"""
WARNED_OF = "(lambda: both(new_host()), sys.exit), (lambda: both(host), sys.exit)"
"""By Python: the child has not closed it itself."""


@pytest.mark.large
@pytest.mark.parametrize("forks", [QUIET, WARNED_OF], ids=["quiet", "warned of"])
def test_a_fork_of_the_owner_does_not_disturb_its_hosts(run_owner, forks):
    owner = run_owner(f"""{FORKS}
for work, leave in [{forks}]:
    assert in_child(work, leave) == 0
    assert both(host) == before
    call = host.tell(wait_for(gate), 1)
    assert in_child(work, leave) == 0
    gate.touch()
    assert host.result(call).rows == [1]
    assert both(host) == before
    gate.unlink()
host.close()
print("undisturbed")
""")
    assert owner.stdout == "undisturbed\n", owner.stderr
    assert owner.stderr == "" or forks is WARNED_OF


def test_an_owner_whose_fork_lives_on_leaves_nothing(run_owner, wait_until):
    owner = run_owner(f"""{FORKS}
child = os.fork()
if not child:
    [os.close(number) for number in (1, 2)]
    signal.pause()
print(child, *before, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    child, *processes = map(int, owner.stdout.split())
    assert wait_until(lambda: all(map(has_ended, processes)))
    assert not has_ended(child)
    os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: has_ended(child))
