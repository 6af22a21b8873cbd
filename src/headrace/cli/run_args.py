"""The command line of ``headrace run`` and ``headrace retry``, as it was typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.config import Scope


@dataclass(frozen=True)
class RunArgs:
    """The command line, as it was typed."""

    arguments: Sequence[str]
    """Inputs, mixed with options that are not ours."""
    handler: str
    output: str
    dead_letters: str | None = None
    retry: bool = False
    """Whether the inputs are dead letters of an earlier run."""
    model: str | None = None
    handler_args: Sequence[str] = ()
    inference_args: Sequence[str] = ()
    columns: Sequence[str] | None = None
    keep: Sequence[str] | None = None
    key: str | None = None
    text_columns: Sequence[str] | None = None
    file_format: str | None = None
    delimiter: str | None = None
    min_batch_size: int | None = None
    max_batch_size: int | None = None
    placement: Scope | None = None
    isolate: bool = False
    timeout: float | None = None
    threshold: float | None = None
    resume: bool = False
    runner: str | None = None
    progress: bool = True
    verbose: bool = False
