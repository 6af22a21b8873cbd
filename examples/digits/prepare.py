"""Prepares the digits demo: a CSV file of handwritten digits, a model, and some rows spoilt on purpose.

    python examples/digits/prepare.py demo

Writes into the folder ``demo``: ``digits.csv`` (the 1,797 digits that come with scikit-learn: 64 columns of pixels and
the true label), ``model.pkl`` (trained on the first half of them) and ``spoilt.json`` (the spoilt rows, and how).
"""

from __future__ import annotations

import csv
import json
import pickle
import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

# row -> (pixel, its text instead of a number)
SPOILT = {
    7: ("pixel_12", "smudge"),
    130: ("pixel_0", ""),
    399: ("pixel_63", "NaN"),
    640: ("pixel_33", "?"),
    898: ("pixel_27", "inf"),
    899: ("pixel_27", "n/a"),
    1204: ("pixel_5", "1O"),  # the letter O
    1500: ("pixel_40", "3,5"),
    1796: ("pixel_63", ""),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    half = len(images) // 2
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(images[:half], labels[:half])
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    with (folder / "digits.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *(f"pixel_{i}" for i in range(64)), "label"])
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            pixels = {f"pixel_{i}": int(value) for i, value in enumerate(image)}
            if row in SPOILT:
                pixels.update([SPOILT[row]])
            writer.writerow([row, *pixels.values(), label])
    spoilt = [{"row": row, "pixel": pixel, "instead": text} for row, (pixel, text) in SPOILT.items()]
    (folder / "spoilt.json").write_text(json.dumps(spoilt, indent=2))
    print(f"{folder}: {len(images)} digits, {len(SPOILT)} of them spoilt, and a model trained on the first {half}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
