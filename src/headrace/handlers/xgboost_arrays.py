"""The plug-in for XGBoost in ``headrace.arrays``: what hosts must know about its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.arrays import NoArrays, NotMappableError
from headrace.core.errors import extra_required

with extra_required("xgboost"):
    import xgboost

__all__ = ["XGBoostArrays"]


class XGBoostArrays(NoArrays):
    """XGBoost has no arrays of its own, but models that must not be moved into shared memory."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Every booster is refused, also within an estimator.

        XGBoost allocates its trees itself, so each process would have a copy; and unpickling a booster starts OpenMP's
        threads, after which a fork of the process, such as a host, hangs in its first prediction.
        """
        return {xgboost.Booster: _refuse}

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Does nothing: each model sets its own number of threads (``nthread``, ``n_jobs``)."""
        return lambda: None


def _refuse(_: Any) -> Any:
    raise NotMappableError("XGBoost keeps its trees in memory of its own")
