"""A model file is downloaded once for the machine, however many hosts come and go."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from apache_beam.io.localfilesystem import LocalFileSystem

from headrace import ModelHandler, predict
from headrace.core.files import open_uri

pytestmark = pytest.mark.large


class Counted(LocalFileSystem):
    @classmethod
    def scheme(cls):
        return "counted"

    def open(self, path, *args, **kwargs):
        path = path.removeprefix("counted:/")
        with open(f"{path}.downloads", "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().open(path, *args, **kwargs)


class Unmappable(ModelHandler):
    def __init__(self, path, **options):
        super().__init__(**options)
        self.path = path
        self.filesystem = Counted  # so that hosts know it

    def load_model(self):
        with open_uri(f"counted:/{self.path}") as file:
            return file.read(), threading.Lock()

    def run_inference(self, batch, model, inference_args=None):
        marker = Path(f"{self.path}.killed")
        if 13 in batch and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [(model[0], os.getpid()) for _ in batch]


def test_a_model_file_is_downloaded_once_for_all_hosts(tmp_path):
    (tmp_path / "model").write_bytes(b"weights")
    handler = Unmappable(str(tmp_path / "model"), model_copies=2, min_batch_size=1, max_batch_size=1)
    answers = list(predict(handler, range(40)))
    assert {content for content, _ in answers} == {b"weights"}
    assert len({host for _, host in answers}) == 3
    assert len((tmp_path / "model.downloads").read_text().split()) == 1
