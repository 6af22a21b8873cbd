"""Scores a CSV file of numbers by hand, in processes: ``forest_by_hand.py INPUT MODEL OUTPUT PROCESSES``."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

_ROWS_AT_ONCE = 1 << 16


def by_hand(source: str, path: str, output: str, processes: str) -> None:
    """What one would write: each process takes a piece of the file, and the outputs are joined."""
    names, cuts = _cuts(source, int(processes))
    outputs = [f"{output}.{number}" for number in range(int(processes))]
    with ProcessPoolExecutor(int(processes)) as pool:
        pieces = zip(outputs, pairwise(cuts), strict=True)
        work = [pool.submit(_score, source, path, out, names, *piece) for out, piece in pieces]
        for one in work:
            one.result()
    with Path(output).open("wb") as whole:
        for out in outputs:
            with Path(out).open("rb") as piece:
                shutil.copyfileobj(piece, whole)
            os.remove(out)


def _cuts(source: str, pieces: int) -> tuple[list[str], list[int]]:
    """The columns, and where pieces of whole lines begin and end."""
    size = os.path.getsize(source)
    with Path(source).open("rb") as file:
        names, cuts = file.readline().decode().strip().split(","), [file.tell()]
        for number in range(1, pieces):
            file.seek(size * number // pieces)
            file.readline()
            cuts.append(file.tell())
    return names, [*cuts, size]


def _score(source: str, path: str, output: str, names: list[str], start: int, stop: int) -> None:
    import pandas  # noqa: PLC0415 - in each process

    model = pickle.loads(Path(path).read_bytes())
    with Path(source).open("rb") as file, Path(output).open("w") as out:
        file.seek(start)
        text = io.BytesIO(file.read(stop - start))
        for frame in pandas.read_csv(text, names=names, chunksize=_ROWS_AT_ONCE):
            predictions = model.predict(frame.to_numpy())
            out.write(frame.assign(prediction=predictions, model_id=path).to_json(orient="records", lines=True))


if __name__ == "__main__":
    by_hand(*sys.argv[1:])
