"""Classifies images by hand: ``images_by_hand.py FOLDER MODEL OUTPUT``."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from image_net import Network, decode

_AT_ONCE = 256
_AHEAD = 2


def by_hand(folder: str, path: str, output: str) -> None:
    """The loop that one would write: threads read and decode the next batches while the model is at work."""
    model = Network()
    model.load_state_dict(torch.load(path))
    model.eval()
    paths = sorted(str(found) for found in Path(folder).rglob("*.jpg"))
    with ThreadPoolExecutor(os.cpu_count()) as threads, open(output, "w") as file, torch.no_grad():
        for batch, images in _ahead(threads, paths):
            scores = model(torch.stack(images)).tolist()
            file.writelines(
                json.dumps({"path": one, "prediction": of}) + "\n" for one, of in zip(batch, scores, strict=True)
            )


def _ahead(threads: ThreadPoolExecutor, paths: list[str]) -> Iterator[tuple[list[str], list[torch.Tensor]]]:
    batches = (paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE))
    loads = ((batch, [threads.submit(_load, one) for one in batch]) for batch in batches)
    coming = deque(itertools.islice(loads, _AHEAD))
    while coming:
        batch, images = coming.popleft()
        yield batch, [image.result() for image in images]
        coming.extend(itertools.islice(loads, 1))


def _load(path: str) -> torch.Tensor:
    return decode(Path(path).read_bytes())


if __name__ == "__main__":
    by_hand(*sys.argv[1:])
