"""Each key of the keyed example gets the predictions of its own model."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to


@pytest.mark.parametrize("grouped", [False, True])
def test_every_key_is_answered_by_its_own_model(example, new_pipeline, tmp_path, grouped):
    keyed = example("keyed_models")
    models = keyed.train(tmp_path)

    with new_pipeline() as pipeline:
        assert_that(
            keyed.build(pipeline, models, 10, grouped=grouped), equal_to(list(_by_hand(keyed, models, 10).items()))
        )


@pytest.mark.large
def test_example_prints_counts_for_every_key(example, capsys):
    keyed = example("keyed_models")
    keyed.main([])

    counts = Counter()
    for line in capsys.readouterr().out.splitlines():
        counts[line.split(":")[0]] += int(line.split()[1])
    assert counts == dict.fromkeys(keyed.KEYS, 60)


def _by_hand(keyed, models, count):
    named = Counter()
    for key, data in keyed.KEYS.items():
        model = pickle.loads(Path(models[data]).read_bytes())
        rows = np.stack([row for _, row in keyed.rows_of(key, count)])
        names = keyed.DATA[data]().target_names[model.predict(rows)]
        named.update((key, str(name)) for name in names)
    return named
