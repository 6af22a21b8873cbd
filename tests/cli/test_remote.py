"""``headrace run`` with a remote handler of the user's own."""

from __future__ import annotations

import sys

import pytest

MODULE = """
import asyncio

import headrace


class AddRemotely(headrace.RemoteModelHandler):
    async def create_client(self):
        return sum

    async def request(self, batch, model, inference_args=None):
        await asyncio.sleep(0.01 / (1 + batch[0]["a"]))
        return [self.one(model, row) for row in batch]

    def one(self, model, row):
        return headrace.ElementFailure(ValueError("13")) if row["a"] == 13 else model(row.values())

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}
"""


@pytest.fixture
def module(folder, monkeypatch):
    (folder.path / "remote_handlers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder.path))
    yield "remote_handlers"
    sys.modules.pop("remote_handlers", None)


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_rows_of_a_remote_handler_come_out_in_their_order(folder, headrace, module, name):
    folder.write(name, [{"a": n, "b": 2} for n in range(20)])
    result = headrace("run", "--handler", f"{module}:AddRemotely", name, "--output", "p.jsonl")
    assert (result.code, result.summary["predictions"], result.summary["dead letters"]) == (0, "19", "1")
    assert folder.rows("p.jsonl") == [{"a": n, "b": 2, "prediction": n + 2} for n in range(20) if n != 13]
