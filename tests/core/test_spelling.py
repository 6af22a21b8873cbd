"""Names that users mistype or misplace find what was meant, and no other; those that Beam ignores are warned of."""

from __future__ import annotations

from typing import ClassVar

import pytest

from headrace import ConfigurationError, ModelHandler
from headrace.core.spelling import did_you_mean, nearest, no_file


class Mapped(ModelHandler):
    _ignored_arguments: ClassVar = {"device": "the model chooses it"}

    def __init__(self, path, device_map=None, **options):
        super().__init__(**options)


class Wrapped(Mapped):
    def __init__(self, path, **options):
        super().__init__(path, **options)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_batchsize", "; did you mean 'max_batch_size'?"),
        ("device_mapp", "; did you mean 'device_map'?"),
        ("batch_size", ": use max_batch_size=... of the model handler (for a fixed size, an equal"),
        ("timeout", ": it belongs to RunInference(...).with_exception_handling(timeout=...) or headrace.predict("),
        ("threshold", ": it belongs to RunInference(...).with_exception_handling(threshold=...)."),
        ("isolate", ": it belongs to RunInference(isolate=...) or headrace.predict(isolate=...)."),
        ("model_identifier", ": it belongs to RunInference(model_identifier=...)."),
        ("columnar", ": it belongs to BatchingConfig(columnar=...), given as batching."),
        ("attempts", ": it belongs to RetryConfig(attempts=...), given as retry."),
        ("linger_secs", ": it belongs to PlacementConfig(linger_secs=...), given as placement."),
        ("tresholds", "; did you mean 'threshold', which belongs to RunInference(...).with_exception_handling("),
        ("zzz", "; it has batch_bucket_boundaries, batch_length_fn, bucket_boundaries, device_map, element_size_fn, "),
    ],
)
def test_unknown_argument_of_a_handler_is_an_error_with_the_cure(name, advice):
    with pytest.raises(ConfigurationError) as caught:
        Wrapped("path", **{name: 1})
    assert str(caught.value).startswith(f"Wrapped has no argument {name!r}{advice}")


def test_the_nearest_name_is_found_whatever_its_case():
    known = ("columns", "Keep", "text-columns", "model")
    meant = {"colums": "columns", "KEEP": "Keep", "modle": "model", "x": None, "placement": None}
    assert {name: nearest(name, known) for name in meant} == meant
    assert (did_you_mean("KEEP", known), did_you_mean("x", known)) == ("; did you mean 'Keep'?", ".")


def test_a_file_that_is_not_there_is_answered_with_its_neighbour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "churn.pkl").touch()
    assert no_file("data/chrun.pkl") == "there is no file 'data/chrun.pkl'; did you mean 'data/churn.pkl'?"
    assert no_file("data/other.pkl") == "there is no file 'data/other.pkl'."  # only the extension is alike
    assert no_file("date/churn.pkl") == "there is no file 'date/churn.pkl', nor a folder 'date'."
