"""XGBoost, through the package's own alias."""

import apache_beam as beam
import numpy
import xgboost
from apache_beam.ml import inference as ml_inference
from apache_beam.ml.inference import xgboost_inference


def build(root, folder):
    """Classes of rows."""
    rows = numpy.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    model = xgboost.XGBClassifier(n_estimators=2, max_depth=1).fit(rows, [0, 1, 0, 1])
    model.save_model(f"{folder}/trees.json")
    handler = xgboost_inference.XGBoostModelHandlerNumpy(
        model_class=xgboost.XGBClassifier, model_state=f"{folder}/trees.json"
    )
    pairs = root | beam.Create([rows[:1], rows[1:2]]) | ml_inference.RunInference(handler)
    return pairs | beam.Map(lambda result: numpy.ravel(result.inference).tolist())
