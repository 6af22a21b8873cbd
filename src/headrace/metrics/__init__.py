"""Turns events into counters and distributions.

::

    runtime  (worker or host process)  -- events (core/events) -->  totals
        Totals            sums in memory, read by cli/display
        InferenceMetrics  the names of Beam's RunInference, for Beam's metrics (beam/recorder)
        Timeline          how a job went over time; verdict and report say what held it back
"""
