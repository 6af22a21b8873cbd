"""What a file of scikit-learn says of its model. A pickle, or a file of joblib or skops, is read and never run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.inert_pickle import Inert
from headrace.core.model_files import KnownModel, ModelFile

__all__ = ["recognise"]

_SCHEMA = "schema.json"
_OWN = ("sklearn.", "imblearn.")
"""Packages whose models are fitted on arrays if they know no names."""
_VECTORIZERS = "sklearn.feature_extraction.text."
_NAMES, _COUNT = "feature_names_in_", "n_features_in_"


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of frames if the model was fitted on named columns, else that of arrays.

    Raises:
        ConfigurationError: the file holds no estimator, or one that does not say which of both it takes.
    """
    arguments: dict[str, Any] = {}
    if "_skops_version" in (schema := model.settings(_SCHEMA)):
        content, arguments = _of_skops(schema), {"model_file_type": "skops"}
    elif model.pickled is not None:
        content = model.pickled.content
        arguments = {"model_file_type": "joblib"} if model.pickled.needs_joblib else {}
    else:
        return None
    if not isinstance(content, Inert):
        raise ConfigurationError(
            f"it holds a {type(content).__name__}, not a model; save the model alone, or name a handler of your own "
            "with --handler package.module:factory."
        )
    return _judged(content, arguments)


def _judged(estimator: Inert, arguments: Mapping[str, Any]) -> KnownModel:
    package, name = estimator.kind.partition(".")[0], estimator.kind.rpartition(".")[2]
    what = f"a {name} of {'scikit-learn' if package == 'sklearn' else package}"
    first = _first(estimator)
    names, count = _texts(first.attribute(_NAMES)), first.attribute(_COUNT)
    if names:
        return KnownModel("sklearn-pandas", what, arguments, columns=_used(first, names))
    if first.kind.startswith(_VECTORIZERS):
        return KnownModel("sklearn-numpy", what, {**arguments, "takes_texts": True}, takes="text")
    if isinstance(count, int) and estimator.kind.startswith(_OWN):
        return KnownModel("sklearn-numpy", what, arguments, width=count)
    raise ConfigurationError(
        f"it holds {what}, which does not show whether it takes frames or arrays; name the handler: --handler "
        "sklearn-pandas or --handler sklearn-numpy."
    )


def _first(estimator: Inert) -> Inert:
    """The part of an estimator that sees the columns: of a pipeline its first step, of a search what it found."""
    parts = [estimator.attribute("best_estimator_"), *(step[1] for step in _listed(estimator.attribute("steps")))]
    if estimator.attribute(_NAMES) is estimator.attribute(_COUNT) is None:
        parts += [estimator.attribute("regressor_"), *_listed(estimator.attribute("estimators_"))]
    first = next((part for part in parts if isinstance(part, Inert)), None)
    return estimator if first is None else _first(first)


def _listed(parts: Any) -> list[Any]:
    return parts if isinstance(parts, list) else []


def _used(first: Inert, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns without those that a ColumnTransformer drops: tables may lack them."""
    places, chosen = first.attribute("_transformer_to_input_indices"), first.attribute("transformers_")
    if not (
        isinstance(places, dict) and isinstance(chosen, list) and all(type(some) is list for some in places.values())
    ):
        return names
    used = {place for name, how, *_ in chosen if how != "drop" for place in places.get(name, ())}
    return tuple(name for place, name in enumerate(names) if place in used)


def _texts(array: Any) -> tuple[str, ...]:
    """The elements of an array of texts, as numpy pickles it; empty if it is anything else."""
    state = array.state if isinstance(array, Inert) else None
    elements = state[-1] if isinstance(state, tuple) and state else None
    is_text = isinstance(elements, list) and all(isinstance(one, str) for one in elements)
    return tuple(elements) if is_text and elements else ()


def _of_skops(node: Mapping[str, Any]) -> Any:
    """What a node of a skops file stands for, as a pickle would hold it."""
    content, loader = node.get("content"), node.get("__loader__")
    if node.get("is_json"):
        return json.loads(content) if isinstance(content, str) else None
    if loader == "NdArrayNode" and isinstance(content, list):
        made = Inert()
        made.state = ([_of_skops(one) for one in content],)
        return made
    if isinstance(content, list):
        items = [_of_skops(one) for one in content]
        return tuple(items) if loader == "TupleNode" else items
    if loader in ("DictNode", "DefaultDictNode", "OrderedDictNode") and isinstance(content, dict):
        return {name: _of_skops(one) for name, one in content.items() if isinstance(one, dict)}
    cls = type(node["__class__"], (Inert,), {"__module__": node["__module__"]})
    made = cls()
    made.state = _of_skops(content) if isinstance(content, dict) and "__loader__" in content else None
    return made
