"""The options about what a run shows.

Annotations are objects here, not texts: typer would look for their names in the module of the class that inherits them.
"""

from dataclasses import dataclass
from typing import Annotated

from headrace.cli.option import RUN, option


@dataclass(frozen=True, kw_only=True)
class ShowArgs:
    """What ``headrace run`` and ``headrace retry`` show while they run and at the end."""

    no_progress: Annotated[
        bool,
        option(
            "--no-progress/--progress",
            RUN,
            "Show only the summary: no bar, and no line every half minute where there is no terminal.",
        ),
    ] = False
    as_json: Annotated[
        bool,
        option(
            "--json/--no-json",
            RUN,
            "Print what came of the run as one JSON object on standard output, in place of the summary.",
        ),
    ] = False
    verbose: Annotated[
        bool,
        option(
            "--verbose/--no-verbose",
            RUN,
            "Show the log, Beam's too, the traceback of a failure, and batch sizes and loading in the summary.",
        ),
    ] = False
