"""Classifies images with Daft: ``images_with_daft.py FOLDER MODEL OUTPUT``, to a folder of JSON lines.

By the Python of an environment that has Daft and not Headrace.
"""

from __future__ import annotations

import sys

import daft
import torch
from image_net import Network, decode

_AT_ONCE = 256


@daft.cls
class Classifier:
    """The network on batches."""

    def __init__(self, path: str):
        self._network = Network()
        self._network.load_state_dict(torch.load(path))
        self._network.eval()

    @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float64()), batch_size=_AT_ONCE)
    def scores(self, contents: daft.Series):
        """Those of each image."""
        images = [decode(content) for content in contents.to_pylist()]
        with torch.no_grad():
            return self._network(torch.stack(images)).tolist() if images else []


def main(folder: str, path: str, output: str) -> None:
    """Reads, predicts, writes."""
    files = daft.from_glob_path(f"{folder}/**/*.jpg").select("path")
    content = daft.functions.download(daft.col("path"))
    found = files.with_column("prediction", Classifier(path).scores(content))
    found.write_json(output, write_mode="overwrite")


if __name__ == "__main__":
    main(*sys.argv[1:])
