"""Prism, Beam's portable local runner, which is written in Go: built once, into ``.engines``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apache_beam as beam
from fetch import EngineError, made_at_once, run_command

FOLDER = Path(__file__).resolve().parent.parent / ".engines"
_PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_OLDEST_GO = "1.21"
_PATIENT = "--job_server_timeout=600"  # a busy machine takes more than Beam's minute to answer


def prism(folder: Path = FOLDER) -> str:
    """The program, of the version of Python's Beam; built (a minute or two) if it is not in the folder yet.

    Raises:
        EngineError: it cannot be built.
    """
    home = folder.resolve() / f"prism-{beam.__version__}"
    if not home.exists():
        go = shutil.which("go")
        if go is None:
            raise EngineError(
                "Prism is built with Go, and there is no `go` in PATH; install it, for example: apt-get install "
                f"golang (version {_OLDEST_GO} or newer)"
            )
        with made_at_once(home) as new:
            run_command([go, "install", f"{_PACKAGE}@v{beam.__version__}"], GOBIN=str(new))
    return str(home / "prism")


def pipeline_options(**environment: str) -> list[str]:
    """The arguments with which a streaming pipeline runs on it, its workers in this process, which has these variables.

    Raises:
        EngineError: it cannot be built.
    """
    os.environ.update(environment)
    runner = ["--runner=PrismRunner", f"--prism_location={prism()}", "--environment_type=LOOPBACK"]
    return [*runner, "--streaming", _PATIENT]
