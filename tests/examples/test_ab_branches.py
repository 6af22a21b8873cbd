"""The A/B example counts what a comparison by hand counts."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
from apache_beam.testing.util import assert_that, equal_to


def test_verdicts_are_those_of_a_comparison_by_hand(example, new_pipeline, tmp_path):
    ab = example("ab_branches")
    model_a, model_b, rows, labels = ab.train(tmp_path)
    right_a, right_b = (_predict(model, rows) == labels for model in (model_a, model_b))
    names = {(1, 1): "both are right", (1, 0): "only A is right", (0, 1): "only B is right", (0, 0): "both are wrong"}
    by_hand = Counter(names[int(a), int(b)] for a, b in zip(right_a, right_b, strict=True))
    assert by_hand["only A is right"]
    assert by_hand["only B is right"]

    with new_pipeline() as pipeline:
        assert_that(ab.build(pipeline, model_a, model_b, rows, labels), equal_to(list(by_hand.items())))


def test_example_prints_how_many_are_right(example, capsys):
    example("ab_branches").main([])

    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert sum(map(int, lines.values())) == 143
    assert int(lines["both are right"]) > 100


def _predict(model, rows):
    return pickle.loads(Path(model).read_bytes()).predict(np.stack(rows))
