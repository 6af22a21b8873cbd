"""A worker process that asks an endpoint: ``asker.py URL FIRST COUNT``; it prints its predictions."""

from __future__ import annotations

import json
import sys
import urllib.request

from headrace import RemoteModelHandler, predict


class Asking(RemoteModelHandler):
    def __init__(self, url):
        super().__init__()
        self.url = url

    def create_client(self):
        return self.url

    def request(self, batch, model, inference_args=None):
        with urllib.request.urlopen(urllib.request.Request(model, json.dumps(list(batch)).encode())) as answer:
            return json.load(answer)

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


def main(url, first, count):
    elements = range(int(first), int(first) + int(count))
    print(json.dumps(list(predict(Asking(url), elements))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
