"""Turns events into counters and distributions.

::

    runtime  (worker process)
       |
       |  events (core/events)
       |
       |--> inference   as counters and distributions under the names of Beam's RunInference
       |       '--> a Sink: Beam's metrics (beam/metrics)
       |
       '--> totals      sums in memory, for a job that runs in this process
               '--> read by cli/progress and cli/summary
"""
