"""What does not pickle is named."""

from __future__ import annotations

import abc
import collections
import functools

import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.handler import ModelHandler
from headrace.ipc.unpicklable import pickle_or_explain
from large import torch
from toys import with_attributes

ROWS = (row for row in ())


class Handler(ModelHandler):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Client:
    def __init__(self):
        self.name = "client"
        self._rows = (row for row in ())


class Careful:
    """Its rows stay at home."""

    def __init__(self, client):
        self.rows, self.client = ROWS, client

    def __getstate__(self):
        return {"client": self.client}


class Slotted:
    __slots__ = ("name", "rows")

    def __init__(self):
        self.name, self.rows = "slotted", a_generator()


class Refusing:
    def __getstate__(self):
        raise LookupError("not now")


class Unforeseen(dict):
    def items(self):
        raise RuntimeError("not like this")


def holding(held):
    return lambda x: [held for _ in x]


def too_early(held):
    for late in ():
        pass
    return lambda: (late, held)


def ring():
    """The first attribute leads back to the handler."""

    class Back(abc.ABC):
        def lead(self):
            return handler

    handler = Handler(back=Back(), rows=ROWS)
    return handler


def local_handler(rows):
    class Local(Handler):
        def run_inference(self, batch, model, inference_args=None):
            return [*rows, *super().run_inference(batch, model)]

    return Local()


def a_generator():
    yield


CULPRITS = {
    "attribute": (Handler(rows=ROWS), "Handler.rows, of type generator,"),
    "of an attribute": (Handler(client=Client()), "Handler.client._rows, of type generator,"),
    "in containers": (Handler(a=[1, {"k": (3, ROWS)}]), "Handler.a[1]['k'][1],"),
    "among many": (Handler(a=[*range(10_000), ROWS]), "Handler.a[10000],"),
    "key": (Handler(a={ROWS: 1}), "Handler.a, of type dict,"),
    "set": (Handler(a={ROWS}), "Handler.a, of type set,"),
    "deque": (Handler(a=collections.deque([1, ROWS])), "Handler.a, of type collections.deque,"),
    "slot": (Handler(a=Slotted()), "Handler.a.rows, of type generator,"),
    "state": (Handler(a=Careful(Client())), "Handler.a.client._rows,"),
    "state refused": (Handler(a=Refusing()), "does not pickle (LookupError: not now)"),
    "partial": (Handler(a=functools.partial(print, end=Client())), "Handler.a.keywords['end']._rows,"),
    "method": (Handler(a=Client().__init__), "Handler.a, of type method,"),
    "default": (Handler(a=eval("lambda x=ROWS: x")), "Handler.a, of type function,"),
    "variable": (Handler(a=holding(ROWS)), "variable `held` of the function holding.<locals>.<lambda> (Handler.a),"),
    "of a variable": (
        Handler(a=holding(Client())),
        "the function holding.<locals>.<lambda> (Handler.a)._rows,",
    ),
    "no value yet": (too_early(ROWS), "Handler, of type function,"),
    "global": (eval("lambda: ROWS", {"ROWS": ROWS}), "the variable `ROWS` of the function <lambda> (Handler),"),
    "preprocessing": (Handler().with_preprocess_fn(holding(ROWS)), "(Handler.get_preprocess_fns.args[0][0]),"),
    "class": (
        type("Local", (Handler,), {"__module__": "__main__", "shared": ROWS})(),
        "Handler, of type __main__.",
    ),
    "method's variable": (local_handler(ROWS), "Handler, of type "),
    "ring": (ring(), "Handler.back,"),
    "too deep": (Handler(a=functools.reduce(lambda links, _: [links], range(100_000), [])), "Handler.a[0][0][0]"),
    "unforeseen": (Unforeseen(a=ROWS), "Handler, of type "),
}
if torch:
    NET = torch.nn.Sequential(with_attributes(torch.nn.ReLU(), hook=ROWS))
    CULPRITS["module"] = (Handler(a=NET), "Handler.a._modules['0'].hook,")


@pytest.mark.parametrize(("value", "culprit"), CULPRITS.values(), ids=CULPRITS)
def test_part_that_does_not_pickle_is_named(value, culprit):
    with pytest.raises(ConfigurationError) as caught:
        pickle_or_explain(value, "Handler")
    assert str(caught.value).startswith("Handler cannot go to the process")
    assert culprit in str(caught.value)
    assert "in load_model" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_culprit_is_looked_for_in_the_part_first():
    handler = Handler(client=Client())
    with pytest.raises(ConfigurationError, match=r"live: Handler\.client\._rows,"):
        pickle_or_explain(("private", handler), "Handler", part=handler)
    with pytest.raises(ConfigurationError, match=r"live: Handler\[1\],"):
        pickle_or_explain((Handler(), ROWS), "Handler", part=Handler())
