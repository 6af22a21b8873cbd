"""Turns events into counters and distributions.

::

    runtime  (worker or host process)  -- events (core/events) -->  totals
        Totals            sums in memory, read by cli/display
        InferenceMetrics  the names of Beam's RunInference, into a Sink: Beam's metrics (beam/metrics)
        Timeline          how a job went over time; verdict and report say what held it back
"""
