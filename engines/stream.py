"""A stream through a RunInference, and what came out of it: for any engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsDict
from apache_beam.transforms import trigger, window
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import PaneInfoTiming
from factor import OFFSET, SPOILT
from gated import FAR, Numbers, Source, Step, Steps
from recording import write

from headrace.beam import ModelMetadata

PARTS = 8
PER_SECOND = 1
"""So many numbers have timestamps of one second; how fast they come is another matter."""
WINDOW_SECS = 5
LATENESS_SECS = 15
LATE, TOO_LATE = -1, -2
"""Elements of the first window that come after its end, and after the lateness that is allowed; each has a file."""
_WINDOWS = 200
"""Far more than a stream here ever sees."""
ONWARD = "onward"
"""The file without which the first window goes on taking what is late."""
NEWS = "news"
"""The file that announces the newer model."""


def build(pipeline: beam.Pipeline, infer: beam.PTransform, folder: Path, lateness_secs: int = LATENESS_SECS) -> None:
    """Numbers come, are predicted in windows, and are grouped by these; every step is written down.

    Args:
        pipeline: a streaming one.
        infer: RunInference, with exception handling.
        folder: of the files that direct it.
        lateness_secs: that the windows allow; where none is, nothing comes that is only late.
    """
    parts: list[Any] = [Numbers(part, PARTS, PER_SECOND, ONWARD, LATENESS_SECS) for part in range(PARTS)]
    late = (Step(LATE, 3.0, FAR, "late"),) if lateness_secs else ()
    parts.append(Steps((*late, Step(TOO_LATE, 4.0, FAR, "too late"))))
    numbers = _source(pipeline, "Numbers", parts, folder)
    windows = beam.WindowInto(
        window.FixedWindows(WINDOW_SECS),
        trigger=trigger.AfterWatermark(late=trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
        allowed_lateness=lateness_secs,
    )
    said, letters = numbers | "Sent" >> beam.Map(_sent) | "Windows" >> windows | "Predict" >> infer
    _ = letters.failed_inferences | "Letters" >> beam.Map(_letter)
    _ = (
        said
        | "Said" >> beam.Map(_said)
        | "Together" >> beam.WithKeys(_nothing).with_output_types(beam.typehints.Tuple[str, int])
        | beam.GroupByKey()
        | "Panes" >> beam.Map(_pane)
    )


def news(pipeline: beam.Pipeline, path: str, folder: Path) -> beam.PCollection:
    """Tells of a newer model once the file ``news`` is there."""
    steps = (Step(ModelMetadata("", ""), 0, 0), Step(ModelMetadata(path, "newer"), 1, FAR, NEWS))
    told = _source(pipeline, "News", [Steps(steps)], folder)
    return told | "At once" >> beam.WindowInto(
        window.GlobalWindows(),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    )


def news_in_windows(pipeline: beam.Pipeline, path: str, folder: Path) -> beam.PCollection:
    """Tells of a newer model in the fourth window, for runners whose side inputs are those of windows that are over."""
    ends = [WINDOW_SECS * number for number in (1, 2, 3)]
    steps = [Step(ModelMetadata("", ""), end - 1, end) for end in ends]
    steps.append(Step(ModelMetadata(path, "newer"), ends[-1], FAR))
    told = _source(pipeline, "News", [Steps(tuple(steps))], folder)
    return told | "In windows" >> beam.WindowInto(window.FixedWindows(WINDOW_SECS))


def offsets(pipeline: beam.Pipeline) -> AsDict:
    """Arguments of the model's call, those of each window other ones: what it is to add."""
    starts = [WINDOW_SECS * number for number in range(_WINDOWS)]
    pairs = [TimestampedValue((OFFSET, start), start) for start in starts]
    stamped = pipeline | "Offsets" >> beam.Create(pairs) | "At their times" >> beam.Map(lambda pair: pair)
    return AsDict(stamped | "Their windows" >> beam.WindowInto(window.FixedWindows(WINDOW_SECS)))


def _source(pipeline: beam.Pipeline, label: str, parts: list[Any], folder: Path) -> beam.PCollection:
    return (
        pipeline
        | f"{label}: parts" >> beam.Create(parts)
        | f"{label}: spread" >> beam.Reshuffle()
        | label >> beam.ParDo(Source(folder))
    )


def _nothing(_: Any) -> str:
    return ""


def _sent(number: int) -> int:
    write("sent", number=number)
    return number


def _said(result: Any, second: Any = beam.DoFn.TimestampParam, where: Any = beam.DoFn.WindowParam) -> int:
    start = float(where.start)
    write(
        "said", number=result.example, value=result.inference, model=result.model_id, second=float(second), start=start
    )
    return result.example


def _letter(letter: Any, second: Any = beam.DoFn.TimestampParam, where: Any = beam.DoFn.WindowParam) -> None:
    for number in letter[0]:
        write("letter", number=number, second=float(second), start=float(where.start))


def _pane(
    group: tuple[str, Iterable[int]], where: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
) -> None:
    write("pane", start=float(where.start), numbers=list(group[1]), timing=PaneInfoTiming.to_string(pane.timing))


class Records:
    """What has been written down so far, by all processes.

    Args:
        folder: of their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, what: str) -> list[dict[str, Any]]:
        """All lines of a kind, in the order of time."""
        found: list[dict[str, Any]] = []
        for path in self._folder.glob("*.jsonl"):
            with path.open() as file:
                found.extend(json.loads(line) for line in file if line.endswith("\n"))
        return sorted((line for line in found if line["what"] == what), key=itemgetter("when"))

    def numbers(self, what: str) -> set[int]:
        """The numbers of all lines of a kind."""
        return {line["number"] for line in self.of(what)}

    def on_time(self, start: float) -> bool:
        """Whether the window that begins then has been grouped."""
        return any(pane["start"] == start and pane["timing"] == "ON_TIME" for pane in self.of("pane"))


def all_grouped(records: Records) -> bool:
    """Whether all that was sent has come out, and been grouped."""
    grouped = {number for pane in records.of("pane") for number in pane["numbers"]}
    return records.numbers("sent") - {TOO_LATE} <= grouped | records.numbers("letter")


def problems(records: Records, factors: Mapping[str, int], *, with_offsets: bool = False) -> list[str]:
    """What is not as it must be; empty: all is.

    Args:
        records: of a stream that is over.
        factors: what each model multiplies by.
        with_offsets: whether it had ``offsets``.
    """
    sent, said, letters = records.numbers("sent"), records.of("said"), records.of("letter")
    here = [*said, *letters]
    spoilt = {number for number in sent if number > 0 and number % SPOILT == 0}
    regular = {number for number in sent if number >= 0}
    panes = [(pane["start"], pane["timing"], number) for pane in records.of("pane") for number in pane["numbers"]]
    on_time = {number for start, timing, number in panes if timing == "ON_TIME" and start == _start(number)}
    gone = sent - {line["number"] for line in here}
    facts = {
        "elements are lost": gone,
        "numbers are missing in the source": _gaps(regular),
        "predictions are wrong": {
            line["number"]
            for line in said
            if line["value"] != line["number"] * factors[line["model"]] + with_offsets * _start(line["number"])
        },
        "elements have lost their timestamps": {
            line["number"] for line in here if line["second"] != _second(line["number"])
        },
        "elements are in another window": {line["number"] for line in here if line["start"] != _start(line["number"])},
        "dead letters are not those that are spoilt": {line["number"] for line in letters} ^ spoilt,
        "elements have become late": regular - spoilt - gone - on_time,
        "elements are grouped in another window": {number for start, _, number in panes if start != _start(number)},
        "elements came too late and were not dropped": {number for *_, number in panes if number == TOO_LATE},
    }
    return [f"{len(which)} {what}: {sorted(which)[:10]}" for what, which in facts.items() if which]


def _gaps(sent: set[int]) -> set[int]:
    last = {part: max((number for number in sent if number % PARTS == part), default=0) for part in range(PARTS)}
    return {number for part in last for number in range(part, last[part], PARTS)} - sent


def _second(number: int) -> float:
    return {LATE: 3.0, TOO_LATE: 4.0}.get(number, number / PER_SECOND)


def _start(number: int) -> float:
    return _second(number) // WINDOW_SECS * WINDOW_SECS
