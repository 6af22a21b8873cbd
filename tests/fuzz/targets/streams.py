"""Streams: what comes out of RunInference, element by element, and what a grouping behind it gets in time.

A schedule is what happens to one key: its elements come in time, early or late, while the watermark and time move on.
Hundreds of them are in one pipeline, whose branches have windows, lateness, ways to wait, and arguments of their own.
On Prism, time and the watermark are the runner's. Beam's bundle-based direct runner, in this process, holds no
watermark, so that what is grouped behind is compared on Prism only.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import apache_beam as beam
from _stream_schedule import Branch, Element, Tick, at, branch, bucket_of, ticks
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms import trigger, window
from apache_beam.utils.windowed_value import PaneInfoTiming

from headrace import BatchingConfig
from headrace.beam import KeyedModelHandler, KeyModelMapping, ModelHandler, RunInference

sys.path.append(str(Path(__file__).resolve().parents[3] / "engines"))

import prism
from fetch import EngineError

ROUND = 80
_BRANCHES = 8
_SIDE_SECS = 10
"""The windows of a side input, each of which has its start."""
_BROKE_DOWN = "panic in stage.Execute bundle processing goroutine: runtime error: invalid memory address"
"""Prism 2.77 asks a worker how far a bundle is after a tenth of a second; its own groupings have none."""
_SEEN: dict[str, list[tuple]] = defaultdict(list)
"""What came out, by pipeline; its workers are threads of this process."""
_NOW = [0.0]
"""What time it is for the direct runner's workers."""


def unable() -> str | None:
    """Why it cannot run on this machine; None if it can. Builds Prism if it is not there yet."""
    try:
        prism.prism()
    except EngineError as error:
        return str(error)
    return None


def run(seed: int, cases: int, *, on_prism: bool = True) -> None:
    """Runs so many schedules, many in one pipeline; the direct runner of this process takes only few at a time."""
    rng = random.Random(seed)
    branches = [branch(rng) for _ in range(_BRANCHES if on_prism else 2)]
    keys = -(-cases // len(branches))
    drawn = ticks(rng, len(branches), keys)
    seen = _outcomes(branches, drawn, keys, on_prism=on_prism)
    for number, one in enumerate(branches):
        elements = [each for tick in drawn for part in tick.bundles for each in part if each.branch == number]
        check(one, elements, [line[1:] for line in seen if line[0] == number], on_prism=on_prism)


def _outcomes(branches: list[Branch], drawn: list[Tick], keys: int, *, on_prism: bool, tries: int = 3) -> list[tuple]:
    """What came out of the pipeline; of a new one, if Prism has broken down."""
    name = uuid.uuid4().hex
    try:
        with beam.Pipeline(**(_prism() if on_prism else _direct())) as pipeline:
            build(pipeline, branches, drawn, name, keys, on_prism=on_prism)
    except RuntimeError as error:
        if tries == 1 or _BROKE_DOWN not in str(error):
            raise
        return _outcomes(branches, drawn, keys, on_prism=on_prism, tries=tries - 1)
    finally:
        seen = _SEEN.pop(name, [])
    return seen


def _prism() -> dict:
    return {"options": PipelineOptions(prism.pipeline_options())}


def _direct() -> dict:
    options = PipelineOptions()
    options.view_as(StandardOptions).streaming = True
    _NOW[0] = 0.0
    return {"runner": BundleBasedDirectRunner(), "options": options}


def build(pipeline, branches: list[Branch], drawn: list[Tick], name: str, keys: int, *, on_prism: bool) -> None:
    stream, now = TestStream().advance_watermark_to(0), 0.0
    for tick in drawn:
        for part in tick.bundles:
            values = [((e.branch, now), (e.key, (e.number, e.weight, e.fate))) for e in part]
            stream.add_elements([window.TimestampedValue(v, at(e.second)) for v, e in zip(values, part, strict=True)])
        stream.advance_watermark_to(at(tick.watermark))
        if tick.seconds:
            stream.advance_processing_time(tick.seconds)
            now += tick.seconds
    elements = pipeline | stream.advance_watermark_to_infinity()
    for number, one in enumerate(branches):
        windows = beam.WindowInto(
            one.windows,
            trigger=_late_panes(one),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=one.lateness,
        )
        mine = elements | f"Of {number}" >> beam.FlatMap(_of, number) | f"Windows {number}" >> windows
        good, dead = mine | f"Infer {number}" >> _infer(one, pipeline, number, keys, on_prism=on_prism)
        _note(good, name, number, "good")
        for stage, letters in (
            ("preprocessing", dead.failed_preprocessing),
            ("inference", [dead.failed_inferences]),
            ("postprocessing", dead.failed_postprocessing),
        ):
            for failed in letters:
                _note(failed, name, number, stage)
        if on_prism:
            grouped = good | f"Group {number}" >> beam.GroupByKey()
            _ = grouped | f"Panes {number}" >> beam.Map(_see_pane, name, number)


def _late_panes(one: Branch) -> trigger.TriggerFn:
    """A pane for each late element, where Prism can do that: not where windows merge."""
    return trigger.DefaultTrigger() if one.windows.is_merging() else trigger.AfterWatermark(late=trigger.AfterCount(1))


def _infer(one: Branch, pipeline, number: int, keys: int, *, on_prism: bool) -> RunInference:
    batching = {**vars(one.batching), "clock": None if on_prism else _now}
    handler = KeyedModelHandler([KeyModelMapping([key], Echo()) for key in range(keys)] if one.by_key else Echo())
    if one.preprocesses:
        handler = handler.with_preprocess_fn(_preprocess)
    arguments = None
    if one.side != "none":
        starts = [0] if one.side == "global" else range(0, 1000, _SIDE_SECS)
        pairs = [window.TimestampedValue(("start", start), start) for start in starts]
        side = pipeline | f"Side {number}" >> beam.Create(pairs) | f"Stamped {number}" >> beam.Map(_same)
        if one.side == "windowed":
            side |= f"Side's windows {number}" >> beam.WindowInto(window.FixedWindows(_SIDE_SECS))
        arguments = beam.pvalue.AsDict(side)
    handler = handler.with_postprocess_fn(_postprocess)
    transform = RunInference(handler, batching=BatchingConfig(**batching), inference_args=arguments)
    return transform.with_exception_handling()


class Echo(ModelHandler):
    """Answers each example with its batch, and with the arguments."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        if any(fate == "inference" for _, _, fate in batch):
            raise ValueError("inference")
        weights, arguments = tuple(weight for _, weight, _ in batch), dict(inference_args or {})
        return [(number, fate, weights, arguments) for number, _, fate in batch]


def _now() -> float:
    return _NOW[0]


def _same(value):
    return value


def _of(value, number: int):
    (own, now), pair = value
    if own == number:
        _NOW[0] = now
        yield pair


def _preprocess(pair):
    if pair[1][2] == "preprocessing":
        raise ValueError("preprocessing")
    return pair


def _postprocess(pair):
    if pair[1][1] == "postprocessing":
        raise ValueError("postprocessing")
    return pair


def _note(pcoll, name: str, number: int, kind: str) -> None:
    _ = pcoll | f"Note {number} {kind}" >> beam.Map(_see, name, number, kind)


def _see(value, name, number, kind, second=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam) -> None:
    if kind == "good":
        (key, answer) = value
    else:
        pair, _ = value
        key, answer = pair[0] if kind == "inference" else pair
    _SEEN[name].append((number, kind, key, answer, float(second), where))


def _see_pane(group, name, number, where=beam.DoFn.WindowParam, pane=beam.DoFn.PaneInfoParam) -> None:
    timing = PaneInfoTiming.to_string(pane.timing)
    _SEEN[name].extend((number, "pane", group[0], answer, timing, where) for answer in group[1])


def check(one: Branch, elements: list[Element], seen: list[tuple], *, on_prism: bool) -> None:
    outcomes = [line for line in seen if line[0] != "pane"]
    expected = Counter(
        (_kind(one, each), each.key, each.number, each.second, where)
        for each in elements
        for where in one.windows_of(each.second)
    )
    found = Counter((kind, key, answer[0], second, where) for kind, key, answer, second, where in outcomes)
    assert found == expected, f"{one}: lost {expected - found}, invented {found - expected}"
    for kind, _, answer, _, where in outcomes:
        if kind == "good":
            check_batch(one, *answer[2:], where, on_prism=on_prism)
    if on_prism:
        check_panes(one, elements, [line[1:] for line in seen if line[0] == "pane"])


def _kind(one: Branch, element: Element) -> str:
    fate = element.fate
    return "good" if fate == "preprocessing" and not one.preprocesses else fate


def check_batch(one: Branch, weights: tuple[int, ...], arguments: dict, where, *, on_prism: bool) -> None:
    """A batch is not too large, and has the arguments of its window."""
    batching, alone = one.batching, len(weights) == 1
    size = sum(weights) if batching.sizes_are_weights else len(weights)
    assert alone or size <= batching.max_batch_size, f"{one}: a batch of {weights}"
    if batching.max_batch_weight:
        assert alone or len(weights) * max(weights) <= batching.max_batch_weight, f"{one}: a batch of {weights}"
    assert len({bucket_of(batching, weight) for weight in weights}) == 1, f"{one}: a batch of {weights}"
    own = {"none": {}, "global": {"start": 0}}.get(one.side)
    if own is None:
        last = where.max_timestamp()
        own = {"start": int(float(last) // _SIDE_SECS * _SIDE_SECS)}
    if on_prism and one.side == "windowed" and not arguments:
        return  # Prism shows only what is of windows that are just over
    assert arguments == own, f"{one}: {arguments} in {where}"


def check_panes(one: Branch, elements: list[Element], panes: list[tuple]) -> None:
    """No element has become late by waiting: what came in time is grouped, and in its window's first pane."""
    grouped: dict[int, list] = defaultdict(list)
    for _, answer, timing, where in panes:
        grouped[answer[0]].append((timing, where))
    for each in elements:
        if _kind(one, each) != "good":
            continue
        for own in one.windows_of(each.second):
            end = float(own.max_timestamp())
            panes_of = grouped[each.number]
            mine = [timing for timing, where in panes_of if where.start <= own.start and own.end <= where.end]
            if end > each.watermark:  # Prism calls the only pane of a session early
                in_time = {"EARLY", "ON_TIME"} if one.windows.is_merging() else {"ON_TIME"}
                assert Counter(mine) in ({timing: 1} for timing in in_time), f"{one}: {each} in time is grouped {mine}"
