"""Stands in for vLLM's server: speaks its protocol on localhost, and does what a prompt says.

Prompts: ``400`` is answered with that status; ``die`` ends the server; ``engine dies`` makes it say from then on that
it is of no use; ``beside N`` waits for N others. Followed by ``once PATH`` they do so only if there is no such file
yet, which they make. Any other prompt comes back in capitals.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--host")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--served-model-name")
parser.add_argument("--chat-template")
parser.add_argument("--max-num-seqs", type=int, default=256)
# These are not vLLM's: what a test wants to happen.
parser.add_argument("--crash-at-start", type=int)
parser.add_argument("--never-answer", action="store_true")
parser.add_argument("--stubborn-engine", action="store_true")
parser.add_argument("--log")
args = parser.parse_args()
NAME = args.served_model_name or args.model
KEY = os.environ["VLLM_API_KEY"]
LOCK = threading.Lock()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    together = most_together = 0
    engine_is_dead = False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.path == "/health":
            self.answer(503 if self.server.engine_is_dead else 200, {})
        elif self.refused():
            self.answer(401, {"error": "Unauthorized"})
        else:
            model = {"id": NAME, "object": "model", "created": 0, "owned_by": "vllm"}
            self.answer(200, {"object": "list", "data": [model]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            self.answer(401, {"error": "Unauthorized"})
        elif request["model"] != NAME:
            self.answer(404, {"error": {"message": f"The model `{request['model']}` does not exist."}})
        elif self.path == "/v1/chat/completions":
            text = " ".join(f"{message['role']}:{message['content']}" for message in request["messages"])
            template = (args.chat_template or "").encode().decode("unicode_escape")  # vLLM takes it in place of a file
            self.respond(request, request["messages"][-1]["content"], template + text)
        else:
            self.respond(request, request["prompt"], request["prompt"])

    def refused(self):
        return self.headers["Authorization"] != f"Bearer {KEY}"

    def respond(self, request, prompt, text):
        with LOCK:
            self.server.together += 1
            self.server.most_together = max(self.server.most_together, self.server.together)
            if args.log:
                with open(args.log, "a") as log:
                    print(prompt, file=log)
        status = self.obey(prompt)
        with LOCK:
            self.server.together -= 1
        if status != 200:
            self.answer(status, {"error": {"message": f"{prompt!r} is refused", "code": status}})
            return
        said = text.upper()[: request.get("max_tokens", 1000)]
        chat = "messages" in request
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
        kind = "chat.completion" if chat else "text_completion"
        seen = self.server.most_together
        usage = {"prompt_tokens": seen, "completion_tokens": 1, "total_tokens": 1 + seen}
        self.answer(200, {"id": "1", "object": kind, "created": 0, "model": NAME, "choices": [choice], "usage": usage})

    def obey(self, prompt):
        what, _, path = prompt.partition(" once ")
        if path:
            try:
                Path(path).touch(exist_ok=False)
            except FileExistsError:
                return 200
        if what == "die":
            print("the engine is on fire", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "engine dies":
            self.server.engine_is_dead = True
            return 500
        if what.startswith("beside "):  # so many others, which it waits for
            deadline = time.monotonic() + 60
            while self.server.most_together <= int(what.split()[1]) and time.monotonic() < deadline:
                time.sleep(0.002)
        return 400 if what == "400" else 200


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"loading {args.model}", flush=True)
if args.crash_at_start is not None:
    print("CUDA is out of memory", file=sys.stderr)
    sys.exit(args.crash_at_start)
engine = "import sys, time; " + ("time.sleep(1000)" if args.stubborn_engine else "sys.stdin.read()")
command = [sys.executable, "-S", "-c", engine, "engine core"]
engine_core = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
if args.never_answer:
    time.sleep(1000)
Server((args.host or "", args.port), Handler).serve_forever()
