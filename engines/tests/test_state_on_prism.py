"""Beam's state on Prism, in a DoFn without Headrace: lost when Prism may split bundles."""

from __future__ import annotations

import threading
from collections import Counter

import apache_beam as beam
import prism
import pytest
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream as streams
from apache_beam.transforms import window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer

from headrace import BatchingConfig
from headrace.beam import ModelHandler, RunInference

pytestmark = pytest.mark.usefixtures("on_prism")

NUMBERS = range(10)
_SLOW_SECS = 2.0
"""Prism looks every tenth of a second whether a bundle has gone on, and splits one that has not."""
_OUT: list[int] = []
"""What came out; the workers are threads of this process."""


_BAG = beam.DoFn.StateParam(BagStateSpec("bag", coders.VarIntCoder()))
_END = TimerSpec("end", TimeDomain.WATERMARK)
_END_TIMER = beam.DoFn.TimerParam(_END)


class Keep(beam.DoFn):
    """Keeps all elements in a bag until the end, as in Beam's documentation; the first of a bundle is slow."""

    def start_bundle(self):
        self._first = True

    def process(self, pair, bag=_BAG, end=_END_TIMER):
        if self._first:
            threading.Event().wait(_SLOW_SECS)
        self._first = False
        bag.add(pair[1])
        end.set(len(NUMBERS))

    @on_timer(_END)
    def on_end(self, bag=_BAG):
        kept = list(bag.read())
        bag.clear()
        return kept


def note(number: int) -> None:
    _OUT.append(number)


class Echo(ModelHandler):
    """Answers each example with itself."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return batch


def kept(*arguments: str, waits: bool = False) -> Counter:
    """What a stateful DoFn returns for elements of one key that arrive at once, beside a RunInference or alone."""
    _OUT.clear()
    stamped = [window.TimestampedValue(("key", number), number) for number in NUMBERS]
    stream = streams.TestStream().advance_watermark_to(0).add_elements(stamped).advance_watermark_to_infinity()
    with beam.Pipeline(options=PipelineOptions([*prism.pipeline_options(), *arguments])) as pipeline:
        pairs = pipeline | stream | beam.Map(lambda pair: pair).with_output_types(tuple[str, int])
        _ = pairs | beam.ParDo(Keep()) | beam.Map(note)
        if waits:
            _ = pairs | RunInference(Echo(), batching=BatchingConfig(max_batch_duration_secs=1))
    return Counter(_OUT)


def test_prism_loses_state_when_it_splits_bundles():
    """If this fails, Prism has been fixed and the workaround tested below can go."""
    assert kept() != Counter(NUMBERS)


def test_prism_keeps_state_when_it_must_not_split_bundles():
    assert kept("--experiments=prism_disable_sdf_split") == Counter(NUMBERS)


def test_prism_must_not_split_bundles_while_elements_wait():
    assert kept(waits=True) == Counter(NUMBERS)
