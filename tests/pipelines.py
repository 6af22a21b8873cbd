"""Pipelines on FnApiRunner whose outputs can be read."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import window

from headrace.beam import RunInference

COLLECTED: dict[str, list] = {}


class Run:
    """A pipeline on FnApiRunner; runs it, and reads the contents of its PCollections."""

    def __init__(self, **options):
        self.pipeline = beam.Pipeline(runner=FnApiRunner(), options=beam.pipeline.PipelineOptions(**options))
        self.name = str(id(self))

    def create(self, elements):
        return self.pipeline | beam.Create(list(elements), reshuffle=False)

    def collect(self, **pcolls):
        """Runs; returns for each argument, in order, a list of (value, timestamp in seconds, window in seconds)."""
        for label, pcoll in pcolls.items():
            COLLECTED[self.name + label] = []
            _ = pcoll | f"Collect-{label}" >> beam.Map(_note, self.name + label)
        self.result = self.pipeline.run()
        self.result.wait_until_finish()
        lists = [COLLECTED.pop(self.name + label) for label in pcolls]
        return lists[0] if len(lists) == 1 else lists

    def values(self, **pcolls):
        lists = self.collect(**pcolls)
        return [v for v, _, _ in lists] if len(pcolls) == 1 else [[v for v, _, _ in one] for one in lists]

    def infer(self, elements, handler, **options):
        """Runs the handler over elements, or over a PCollection of them; returns the predictions."""
        return self.values(out=self._given(elements) | RunInference(handler, **options))

    def caught(self, elements, handler, how=None, **options):
        """The same with exceptions handled ``how``: the predictions, and the dead letters of inference."""
        infer = RunInference(handler, **options).with_exception_handling(**(how or {}))
        good, dead = self._given(elements) | infer
        return self.values(good=good, dead=dead.failed_inferences)

    def _given(self, elements):
        return elements if isinstance(elements, beam.PCollection) else self.create(elements)

    def metrics(self):
        found = self.result.metrics().query()
        return {
            (m.key.metric.namespace, m.key.metric.name): m.committed for m in found["counters"] + found["distributions"]
        }


def _note(value, label, time=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam):
    span = None if isinstance(where, window.GlobalWindow) else (float(where.start), float(where.end))
    COLLECTED[label].append((value, float(time), span))


def by_second(run, label, values, windows=None):
    """A PCollection of values with timestamps, in windows of ten seconds or others."""
    pcoll = run.pipeline | label >> beam.Create(values) | f"{label} at" >> beam.MapTuple(window.TimestampedValue)
    return pcoll | f"{label} in" >> beam.WindowInto(windows or window.FixedWindows(10))


def through_pipeline(handler, elements, **options):
    """What RunInference makes of the elements of one bundle."""
    return Run().infer(elements, handler, **options)
