"""``headrace.quote``, and the commands by which a quote is made: pilots run in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import ConfigurationError, HeadraceError

_COMMAND = "import json, sys; sys.argv[1:] = json.load(sys.stdin); from headrace.cli.main import main; main()"
"""Its options come from standard input: all users see the arguments of a process, and there may be keys in them."""
_MISUSED = 2
_KILL_SECS = 10.0


def quote(inputs: str | Sequence[str], **options: Any) -> dict[str, Any]:
    """What a run over files would take; pilots of a minute or less measure it, each in a process of its own.

    Args:
        inputs: files or globs, as ``headrace quote`` takes them.
        options: those of ``headrace quote``, by their names with ``_``: ``handler="my_model:make"``, ``workers=2``,
            ``alternative=["--workers 2"]``, ``price={"small": "0.15,0.60"}``, ``pilot=30``.

    Returns:
        What ``headrace quote --json`` prints: ``rows``, ``seconds``, ``tokens_in``, ``tokens_out`` and ``money``, each
        but the first with ``_low`` and ``_high``, ``alternatives``, ``recommended``, and more. None is not known.

    Raises:
        ConfigurationError: an option or an input is wrong.
        HeadraceError: the handler or its endpoint failed.
    """
    paths = [inputs] if isinstance(inputs, str) else list(inputs)
    code, out, error = run_command(["quote", *_words(options), "--json", *paths])
    if code:
        raise (ConfigurationError if code == _MISUSED else HeadraceError)(error)
    found: dict[str, Any] = json.loads(out)
    return found


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool) or value is None:
            words += [option] if value else []
            continue
        pairs = value.items() if isinstance(value, Mapping) else ()
        of_pairs = [f"{key}={one if isinstance(one, str) else json.dumps(one)}" for key, one in pairs]
        several = value if isinstance(value, list | tuple) else [value]
        words += [word for one in of_pairs or several for word in (option, str(one))]
    return words


def run_command(words: Sequence[str], seconds: float | None = None) -> tuple[int, str, str]:
    """Runs a command of Headrace, interrupted if it takes longer.

    Returns:
        Its exit code, its output, and its error, or if it was interrupted its last warning.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(words).encode())
        given.seek(0)
        command = [sys.executable, "-c", _COMMAND]
        process = subprocess.Popen(  # noqa: S603 - this Python, with our own module
            command, stdin=given, stdout=out, stderr=errors
        )
        try:
            code, kind = process.wait(seconds), "error: "
        except subprocess.TimeoutExpired:
            code, kind = _interrupted(process), "warning: "
        except BaseException:  # the command has processes and files to end
            _interrupted(process)
            raise
        finally:
            process.kill()
            process.wait()
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    lines = texts[1].splitlines()
    said = [line.removeprefix(kind) for line in lines if line.startswith(kind)]
    return code, texts[0], (said or lines or [f"the command ended with {code}"])[-1]


def _interrupted(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_KILL_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
