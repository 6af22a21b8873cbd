"""What hosts must know of XGBoost's models: the plug-in that ``headrace.arrays`` finds for xgboost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.arrays import NoArrays, NotMappableError
from headrace.core.errors import MissingExtraError

try:
    import xgboost
except ImportError as error:
    raise MissingExtraError("xgboost", "xgboost") from error

__all__ = ["XGBoostArrays"]


class XGBoostArrays(NoArrays):
    """XGBoost has no arrays that could travel, but models that must not be moved into shared memory."""

    def exporters(self) -> Mapping[type, Callable[[Any], Any]]:
        """Every booster is refused, also within an estimator.

        Its trees lie in memory of XGBoost's own, so each process would have a copy; and it starts OpenMP's threads as
        it is unpickled, after which a fork of the process, such as a host, hangs in its first prediction.
        """
        return {xgboost.Booster: _refuse}

    def limit_threads(self, count: int) -> Callable[[], None]:
        """Does nothing: how many threads XGBoost takes each model says itself (``nthread``, ``n_jobs``)."""
        return lambda: None


def _refuse(_: Any) -> Any:
    raise NotMappableError("XGBoost keeps its trees in memory of its own")
