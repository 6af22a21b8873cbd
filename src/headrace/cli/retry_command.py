"""The options with which ``headrace retry`` does what a run has done."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

from headrace.cli.fallbacks import options_behind
from headrace.cli.options import RetryArgs, RunArgs
from headrace.core.secrets import MASK

_OF_ONE_RUN = (
    *("arguments", "output", "into", "dead_letters", "output_format", "report", "report_messages", "watch", "config"),
    *("prometheus", "no_progress", "as_json", "verbose", "threshold", "resume", "runner", "cause"),
    *("fallback_model", "fallback_args"),
)
"""Options that a retry does not take over, or that stand behind another."""
_SECRET = re.compile(
    r"^(--[\w-]+=)?([^=]*(api_?key|(access|auth|bearer|hf)_?(key|token)|password|secret|credential)[^=]*|token)="
    r"|authorization['\"]?\s*[:=]|://[^/@\s]*@",
    re.IGNORECASE,
)


def retry_options(args: RunArgs | RetryArgs) -> str:
    """The options of a run with which its dead letters are retried, but for secrets, as a command line has them."""
    return shlex.join(word for field in fields(RetryArgs) for word in _words(args, field))


def _words(args: RunArgs | RetryArgs, field: Any) -> Iterator[str]:
    value = getattr(args, field.name, None)
    if field.name in _OF_ONE_RUN or value is None or value is False:
        return
    name = field.metadata["typer"].param_decls[0].partition("/")[0]
    if value is True:
        yield name
        return
    for number, one in enumerate(value if isinstance(value, list | tuple) else [value], start=1):
        yield from (name, masked(str(one.value if isinstance(one, Enum) else one)))
        if field.name == "fallback":
            for option, own in options_behind(args, number):
                yield from (option, masked(own))


def masked(text: str) -> str:
    """A word of a command line, without a secret."""
    key = text.partition("=")[0]
    return (f"{key}={MASK}" if key.isidentifier() else MASK) if _SECRET.search(text) else text
