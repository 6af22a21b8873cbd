"""What works where the system has no fork, no Unix sockets and no file locks of Unix, as on Windows.

Nothing here runs on Windows: what it lacks is taken away.
"""

import re
import subprocess
import sys

import pytest

LESS = """
import os, socket, sys

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
del os.fork, socket.AF_UNIX, socket.send_fds

import headrace

class Square(headrace.ModelHandler):
    def load_model(self):
        return lambda number: number**2

    def run_inference(self, batch, model, inference_args=None):
        return [model(number) for number in batch]

"""


def printed(code):
    """What the code prints on such a system."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", LESS + code], check=False, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_predict_works():
    assert printed("print(list(headrace.predict(Square(), [1, 2, 3])))") == "[1, 4, 9]\n"


@pytest.mark.large
def test_options_that_need_another_process_are_refused_and_a_large_model_is_private():
    code = """
for options in ({"isolate": True}, {"timeout": 5}, {"placement": "machine"}):
    try:
        headrace.predict(Square(), [1, 2, 3], **options)
    except headrace.ConfigurationError as error:
        print("refused:", error)
print(list(headrace.predict(Square(large_model=True), [1, 2, 3])))
"""
    said = printed(code)
    assert len(re.findall("refused: .*it needs processes that fork and Unix sockets", said)) == 3
    assert "[1, 4, 9]\n" in said
    assert "NotYetHonouredWarning: Square asks for one copy" in said


@pytest.mark.large
def test_a_run_over_files_says_why_it_cannot():
    arguments = ["run", "x.csv", "--handler", "h", "--output", "o.jsonl"]
    assert "use Linux, macOS or WSL" in printed(f"from headrace.cli.main import main\nmain({arguments})")
