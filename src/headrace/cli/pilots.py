"""The pilots of a quote: short runs over a sample, each in a process of its own, and what they say together."""

from __future__ import annotations

import math
import os
import random
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.cli.console import ExitCode
from headrace.cli.options import RunArgs
from headrace.cli.words import changed, differs_in_predictions, masked, plain, table_of, words_of
from headrace.core.errors import ConfigurationError, HeadraceError
from headrace.jobs.files import match
from headrace.jobs.quote import run_command
from headrace.jobs.sample import Sample
from headrace.metrics.forecast import forecast, machines
from headrace.metrics.report import read_figures

_READING, _GROWING = 0.8, 0.5
"""The shares of a pilot's time after which it reads no more rows: what was read has to be done, too."""
_MOST_BYTES = 1 << 29
"""Of the file of a sample that is repeated, for models that would be done with it in a moment."""

_BATCH_SECS, _BATCH_PRICE = 24 * 3600.0, 0.5
"""Of providers' Batch APIs: the longest that they take, and what they charge of the price."""

Entry = dict[str, Any]


class Pilots:
    """Quotes the options of a run, and alternatives.

    Args:
        args: of the run.
        alternatives: texts of options in place of these.
        seconds: how long all pilots together may take.
        deadline: seconds that the run may take; None: any.

    Raises:
        ConfigurationError: an option or an input is wrong.
    """

    def __init__(self, args: RunArgs, alternatives: Sequence[str], seconds: float, deadline: float | None) -> None:
        _refuse(args)
        self._options = {"": plain(args)}
        for text in alternatives:
            options = changed(self._options[""], text)
            name = _without_secrets(text)
            while self._options.setdefault(name, options) != options:
                name += ", with another secret"
        drawn = random.Random()  # noqa: S311 - keeps no secret
        self._sample = Sample(match(args.arguments, args.file_format, args.delimiter), drawn, args.limit)
        self._rows = min(self._sample.rows, args.limit or self._sample.rows)
        self._kind = "jsonl" if args.output is None else os.path.splitext(args.output)[1][1:]
        self._kind = self._kind if self._kind in ("csv", "parquet") else "jsonl"
        self._budget = args.budget and args.budget / len(self._options)
        self._budget_tokens = args.budget_tokens and max(1, args.budget_tokens // len(self._options))
        self._seconds = seconds / len(self._options)
        self._deadline = deadline

    def quote(self, say: Callable[[str], object]) -> tuple[Entry, RunArgs]:
        """The quote, and the options that it recommends; ``say`` is told what goes on.

        Raises:
            HeadraceError: the pilot of the run itself failed; a ConfigurationError for a wrong option.
        """
        found: dict[str, Entry] = {}
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            for number, (text, options) in enumerate(self._options.items()):
                say(f"pilot {number + 1} of {len(self._options)}: {text or 'these options'}")
                try:
                    one = self._forecast(replace(options, batch_directory=None), number, folder)
                    one = one if options.batch_directory is None else _by_batches(one)
                    found[text] = {**one, "machines": self._deadline and machines(one, self._deadline)}
                except HeadraceError as error:
                    if not text:
                        raise
                    found[text] = {"error": str(error)}
                same = not differs_in_predictions(self._options[""], options)
                found[text] |= {"options": table_of(options), "predicts_the_same": same}
        best = self._recommended(found)
        quoted = {
            **found[""],
            "rows_are_exact": self._sample.is_exact,
            "deadline_seconds": self._deadline,
            "recommended": best,
            "alternatives": [{"alternative": text, **found[text]} for text in self._options if text],
        }
        return quoted, self._options[best]

    def _recommended(self, found: Mapping[str, Entry]) -> str:
        """The fastest with these predictions; with a deadline, the cheapest of those that keep it."""
        same = {text: one for text, one in found.items() if one["predicts_the_same"] and "error" not in one}
        in_time = [text for text, one in same.items() if one["seconds_high"] <= (self._deadline or 0.0)]
        slowest = math.inf
        if in_time:
            return min(in_time, key=lambda text: (same[text]["money"] or 0.0, same[text]["seconds"] or slowest))
        return min(same, key=lambda text: same[text]["seconds"] or slowest)

    def _forecast(self, options: RunArgs, number: int, folder: str) -> Entry:
        until = time.monotonic() + self._seconds
        has_cache = options.cache is not None
        # What one pilot puts into the cache is not to be found there by the next one.
        part = slice(number % self._sample.size, self._rows, len(self._options)) if has_cache else slice(self._rows)
        figures, stopped, warning = self._pilot(options, folder, part, 1, until)
        found = forecast(figures, self._rows, stopped)
        again = self._repeats(figures, found, until - time.monotonic())
        if again > 1 and not has_cache and self._sample.size < self._rows:
            figures, stopped, warning = self._pilot(options, folder, part, again, until)
            found = forecast(figures, self._rows, stopped)
        if found["seconds"] is None:
            raise HeadraceError(
                f"no row was done within {self._seconds:.0f} s; give a longer --pilot, or fewer alternatives. {warning}"
            )
        if found["dead_letters"] == 1:
            cause = figures["causes"][0]
            raise HeadraceError(f"every row of the pilot failed: {cause['error_type']}: {cause['message']}")
        return found

    def _repeats(self, figures: Mapping[str, Any], found: Entry, left: float) -> int:
        """How often the sample has to be run to fill the time that is left; 1: it did, or that would be paid for."""
        if figures["usage"] or figures["rows"] != self._sample.size or found["seconds"] is None:
            return 1
        wanted = found["rows_per_second"] * (_GROWING * left - found["start_seconds"])
        return min(int(wanted / self._sample.size), max(1, self._sample.times_within(_MOST_BYTES)))

    def _pilot(
        self, options: RunArgs, folder: str, part: slice, times: int, until: float
    ) -> tuple[Mapping[str, Any], float, str]:
        """Runs a sample, as a user would; returns its report's figures, when it read no more rows, and what it said."""
        paths = self._sample.write(folder, times, part)
        report = os.path.join(folder, "report.json")
        left = max(1.0, until - time.monotonic())
        stopped = _READING * left
        options = replace(options, budget=self._budget, budget_tokens=self._budget_tokens)
        options = replace(options, file_format="files" if self._sample.is_of_files else None)
        words = [*words_of(options), "--config", os.devnull, "--no-progress"]
        words += ["--output", os.path.join(folder, f"out.{self._kind}"), "--report", report, "--report-messages"]
        words += ["--stop-after", str(stopped), "--threshold", "1"]
        code, _, error = run_command(["run", *words, *paths], left)
        if code not in (ExitCode.DONE, ExitCode.BUDGET_SPENT, ExitCode.INTERRUPTED) or not os.path.exists(report):
            raise (ConfigurationError if code == ExitCode.WRONG_ARGUMENT else HeadraceError)(
                error or f"the pilot ended with {code}."
            )
        figures = read_figures(report)
        os.remove(report)
        return figures, stopped, error


def _without_secrets(alternative: str) -> str:
    words = shlex.split(alternative)
    shown = [masked(word) for word in words]
    return alternative if shown == words else shlex.join(shown)


def _refuse(args: RunArgs) -> None:
    strange = [word for word in args.arguments if word.startswith("-") and word != "-"]
    if args.runner is not None or strange:
        raise ConfigurationError(f"a quote is of this machine; leave {strange[0] if strange else '--runner'} out.")
    if args.changed_since is not None:
        raise ConfigurationError("a quote is of all rows; leave --changed-since out.")
    if args.cache is None and (args.budget is not None or args.budget_tokens is not None):
        raise ConfigurationError("a budget goes with --cache: without it, what the pilot has paid for is lost.")
    if args.batch_directory is not None:
        raise ConfigurationError(
            "a Batch API may take a day: quote the run without --batch-directory, and that as an --alternative."
        )


def _by_batches(found: Entry) -> Entry:
    """What the same requests take with a provider's Batch API, which no pilot can wait for."""
    money = {name: found[name] and _BATCH_PRICE * found[name] for name in ("money", "money_low", "money_high")}
    unknown = dict.fromkeys(("seconds", "seconds_low", "rows_per_second", "start_seconds", "load_seconds"))
    return {**found, **unknown, **money, "seconds_high": _BATCH_SECS, "binds": "the provider"}
