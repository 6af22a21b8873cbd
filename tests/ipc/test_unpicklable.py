"""What does not pickle is named."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler
from headrace.ipc.serialization import pickle_or_explain

ROWS = (row for row in ())


class Handler(ModelHandler):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Careful(Handler):
    """Its lock stays at home, its rows do not."""

    def __getstate__(self):
        return {"rows": self.rows}


class Refusing(Handler):
    def __getstate__(self):
        raise LookupError("not now")


CULPRITS = {
    "attribute": (Handler(rows=ROWS), "Handler.rows, of type generator,"),
    "within": (Handler(a=1, b=[{"k": ROWS}]), "Handler.b, of type list,"),
    "state": (Careful(rows=ROWS, more=ROWS), "Handler.rows, of type generator,"),
    "state refused": (Refusing(), "does not pickle (LookupError: not now)"),
    "function": (Handler().with_preprocess_fn(lambda x: ROWS), "does not pickle (TypeError: "),
    "class": (
        type("Local", (Handler,), {"__module__": "__main__", "shared": ROWS})(),
        "Handler, of type __main__.",
    ),
    "no object": (lambda: ROWS, "Handler, of type function,"),
}


@pytest.mark.parametrize(("value", "culprit"), CULPRITS.values(), ids=CULPRITS)
def test_part_that_does_not_pickle_is_named(value, culprit, monkeypatch):
    with pytest.raises(ConfigurationError) as caught:
        pickle_or_explain(value, "Handler")
    assert str(caught.value).startswith("Handler cannot go to the process")
    assert culprit in str(caught.value)
    assert "in load_model" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_culprit_is_looked_for_in_the_handler():
    handler = Handler(client=ROWS)
    with pytest.raises(ConfigurationError, match=r"live: Handler\.client,"):
        pickle_or_explain(("private", handler), "Handler", part=handler)
