"""The A/B example counts what a comparison by hand counts."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np


def test_example_prints_what_a_comparison_by_hand_counts(example, tmp_path, capsys):
    ab = example("ab_branches")
    *models, rows, labels = ab.train(tmp_path)
    rights = [pickle.loads(Path(model).read_bytes()).predict(np.stack(rows)) == labels for model in models]
    names = {(1, 1): "both are right", (1, 0): "only A is right", (0, 1): "only B is right", (0, 0): "both are wrong"}
    by_hand = Counter(names[int(a), int(b)] for a, b in zip(*rights, strict=True))
    assert by_hand["only A is right"]
    assert by_hand["only B is right"]

    ab.main([])

    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert {name: int(count) for name, count in lines.items()} == by_hand
