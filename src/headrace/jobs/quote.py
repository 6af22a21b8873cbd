"""``headrace.quote``, and the commands by which a quote is made: pilots run in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace.core.errors import ConfigurationError, HeadraceError
from headrace.core.transferable import html_table

_COMMAND = "import json, sys; sys.argv[1:] = json.load(sys.stdin); from headrace.cli.main import main; main()"
"""Its options come from standard input: all users see the arguments of a process, and there may be keys in them."""
_MISUSED = 2
_KILL_SECS = 10.0


class Quote(dict[str, Any]):
    """What ``headrace quote --json`` prints; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        rows = list(_rows_of(self))
        for one in self.get("alternatives", ()):
            more = "; ".join(f"{name} {text}" for name, text in _rows_of(one) if name in ("seconds", "money", "error"))
            rows.append((f"alternative {one['alternative']}", more))
        return html_table("quote", rows)


def _rows_of(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The figures that are known, each with its interval."""
    for name, value in found.items():
        low, high = (found.get(f"{name}_{end}") for end in ("low", "high"))
        if isinstance(value, dict | list) or name.endswith(("_low", "_high")) or (value is None and high is None):
            continue
        texts = [f"{one:,.6g}" if isinstance(one, float) else f"{one}" for one in (value, low, high)]
        text = texts[0] if value is not None else "not known"
        yield name.replace("_", " "), text if high is None else f"{text} ({texts[1]} to {texts[2]})"


def quote(inputs: str | Sequence[str], **options: Any) -> Quote:
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
    return Quote(json.loads(out))


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
    """The exit code and the output of a command of Headrace, and its error, or its last warning if it took longer."""
    command = [sys.executable, "-c", _COMMAND]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(words).encode())
        given.seek(0)
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
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_KILL_SECS)
    process.kill()
    return process.wait()
