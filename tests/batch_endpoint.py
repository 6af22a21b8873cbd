"""A server on localhost that speaks the Batch APIs of OpenAI and Anthropic."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from email.parser import BytesParser

import pytest

from headrace.handlers import batch_jobs
from http_endpoint import KEY, Answer, FaultServer, Replying, running

ENDED = ("completed", "expired", "cancelled", "failed")
NOT_COME_TO = "This request could not be executed in time."


class Sent:
    """A batch at the server."""

    def __init__(self, number, requests, metadata=None):
        self.id = f"batch_{number}"
        self.number = number
        self.requests = requests
        """Pairs of custom id and body."""
        self.metadata = metadata
        self.created = time.time()
        self.status = "in_progress"
        self.left = 0
        """How many requests, the last ones, it has not come to."""
        self.errors = []
        self.is_archived = False
        """Whether its answers are gone."""
        self.is_late = False
        """Whether the file of answers is missing, once."""
        self.found = None
        """What came of it: pairs of custom id and Answer, or None."""


class BatchServer(FaultServer):
    """Keeps files and batches. A batch ends when it is first asked for, unless ``held``.

    Args:
        answer: from (request, 0) to the Answer of a single request.
        fault: from (server, method, path) to an Answer in place of the right one, or None. Called after what was asked
            for is done, so that a batch may be made whose maker never hears of it.
        ending: changes a batch that ends, which otherwise is complete.
    """

    def __init__(self, answer, fault=None, ending=None):
        super().__init__(answer, handler=_Handler)
        self.fault = fault or (lambda server, method, path: None)
        self.ending = ending or (lambda batch: None)
        self.damage = lambda lines: lines
        """From the lines of a file of answers, as bytes, to what is sent in their place."""
        self.files = {}
        self.batches = []
        self.held = False
        """Whether batches go on running."""
        self.polled = threading.Event()

    @property
    def bodies(self):
        """The requests of all batches."""
        return [body for batch in self.batches for _, body in batch.requests]

    def make(self, requests, metadata=None):
        with self.lock:
            self.batches.append(Sent(len(self.batches) + 1, requests, metadata))
            return self.batches[-1]

    def batch(self, name):
        """The batch, which may end now."""
        batch = next((one for one in self.batches if one.id == name), None)
        if batch is not None and batch.status not in ENDED and not self.held:
            batch.status = "completed"
            self.ending(batch)
        self.polled.set()
        return batch

    def done(self, batch):
        """Pairs of custom id and Answer, in no order; of a request that was not come to, None."""
        if batch.found is None:
            come_to = batch.requests[: len(batch.requests) - batch.left]
            batch.found = [(name, self.answer(body, 0)) for name, body in come_to]
            batch.found += [(name, None) for name, _ in batch.requests[len(come_to) :]]
            random.Random(batch.number).shuffle(batch.found)
        return batch.found


class _Handler(Replying):
    def answer(self, data):
        server = self.server
        path = self.path.partition("?")[0]
        with server.lock:
            server.paths.append(f"{self.command} {path}")
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            speak = _anthropic if "/messages/" in path else _openai
            answer = speak(server, self.command, path, data, self.headers)
            return server.fault(server, self.command, path) or answer


def _missing(path):
    return Answer(404, {"type": "error", "error": {"type": "not_found_error", "message": f"nothing at {path}"}})


def _openai(server, method, path, data, headers):
    parts = path.removeprefix("/v1/").split("/")
    if (method, parts) == ("POST", ["files"]):
        name = f"file_{len(server.files) + 1}"
        server.files[name] = _uploaded(data, headers)
        return Answer(
            body={"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "batch"}
        )
    if (method, parts) == ("POST", ["batches"]):
        asked = json.loads(data)
        lines = [json.loads(line) for line in server.files[asked["input_file_id"]].splitlines()]
        assert {line["url"] for line in lines} == {asked["endpoint"]}
        assert len({line["custom_id"] for line in lines}) == len(lines)
        return Answer(
            body=_openai_batch(server.make([(one["custom_id"], one["body"]) for one in lines], asked["metadata"]))
        )
    if (method, parts) == ("GET", ["batches"]):
        found = [_openai_batch(one) for one in reversed(server.batches)]
        return Answer(body={"object": "list", "data": found, "has_more": False})
    if parts[0] == "batches" and (batch := server.batch(parts[1])) is not None:
        return Answer(body=_openai_batch(batch))
    if parts[0] == "files" and parts[1].partition("-")[0] in ("output", "errors"):
        kind, _, name = parts[1].partition("-")
        return Answer(body=_openai_file(server, server.batch(name), kind))
    return _missing(path)


def _uploaded(data, headers):
    """The file in a form."""
    form = BytesParser().parsebytes(b"Content-Type: " + headers["Content-Type"].encode() + b"\r\n\r\n" + data)
    (file,) = (part for part in form.get_payload() if part.get_filename())
    return file.get_payload(decode=True)


def _openai_batch(batch):
    ended = batch.status in ENDED and batch.status != "failed"
    body = {"id": batch.id, "object": "batch", "status": batch.status, "created_at": int(batch.created)}
    body |= {"completion_window": "24h", "endpoint": "/v1/chat/completions", "input_file_id": "file_1"}
    body |= {"metadata": batch.metadata, "errors": {"object": "list", "data": batch.errors}}
    done = len(batch.requests) - batch.left if ended else 0
    body |= {"request_counts": {"completed": done, "failed": 0, "total": len(batch.requests)}}
    if batch.is_late:
        batch.is_late = False
        return body
    return body | {
        f"{kind}_file_id": f"{'errors' if kind == 'error' else kind}-{batch.id}" if ended else None
        for kind in ("output", "error")
    }


def _openai_file(server, batch, kind):
    lines = []
    for name, answer in server.done(batch):
        line = {"id": "r", "custom_id": name, "response": None, "error": None}
        if answer is None:
            line["error"] = {"code": "batch_expired", "message": NOT_COME_TO}
        else:
            line["response"] = {"status_code": answer.status, "request_id": "q", "body": answer.body}
        if (kind == "output") == (answer is not None and answer.status == 200):
            lines.append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    return b"".join(server.damage(lines) if kind == "output" else lines)


def _anthropic(server, method, path, data, headers):
    parts = path.partition("/messages/batches")[2].strip("/").split("/")
    if method == "POST":
        asked = json.loads(data)["requests"]
        return Answer(body=_anthropic_batch(server, server.make([(one["custom_id"], one["params"]) for one in asked])))
    if parts == [""]:
        found = [_anthropic_batch(server, server.batch(one.id)) for one in reversed(server.batches)]
        return Answer(body={"data": found, "has_more": False, "first_id": None, "last_id": None})
    batch = server.batch(parts[0])
    if batch is None:
        return _missing(path)
    if parts[1:] == ["results"]:
        pairs = [(name, _anthropic_result(one)) for name, one in server.done(batch)]
        lines = [json.dumps({"custom_id": name, "result": one}).encode() + b"\n" for name, one in pairs]
        return Answer(body=b"".join(server.damage(lines)), headers={"Content-Type": "application/x-jsonl"})
    return Answer(body=_anthropic_batch(server, batch))


def _anthropic_batch(server, batch):
    ended = batch.status in ENDED
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    counts["total"] = len(batch.requests)  # which a later version of the API may say
    counts["succeeded" if ended else "processing"] = len(batch.requests)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(batch.created))
    body = {"id": batch.id, "type": "message_batch", "created_at": at, "expires_at": at, "request_counts": counts}
    body |= {"processing_status": "ended" if ended else "in_progress", "ended_at": at if ended else None}
    is_there = ended and not batch.is_archived
    return body | {"results_url": f"{server.url}v1/messages/batches/{batch.id}/results" if is_there else None}


def _anthropic_result(answer):
    if answer is None:
        return {"type": "expired"}
    if answer.status == 200:
        return {"type": "succeeded", "message": answer.body}
    return {"type": "errored", "error": answer.body}


def batching(answer, fault=None, ending=None):
    return running(BatchServer(answer, fault, ending))


def once(path, answer):
    """A fault: the first request to a path that begins like this gets this answer."""
    left = itertools.chain([answer], itertools.repeat(None))
    return lambda server, method, asked: next(left) if f"{method} {asked}".startswith(path) else None


@pytest.fixture
def _keys_and_short_pauses(monkeypatch):
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    for name, secs in (("FIRST_POLL_SECS", 0.01), ("LONGEST_POLL_SECS", 0.02), ("ARRIVING_SECS", 0.05)):
        monkeypatch.setattr(batch_jobs, name, secs)
