"""Predictors: what remains of a model when its rows, ids, keys and seed are left out.

Every model with a predictor has the method `predictor()`. Its result predicts exactly like the
model, cannot forget or learn, and has a small file. `letheon.save` and `letheon.load` accept it.

Examples
--------
>>> from sklearn.datasets import load_breast_cancer
>>> from letheon import DaREForestClassifier
>>> X, y = load_breast_cancer(return_X_y=True)
>>> model = DaREForestClassifier(n_estimators=10, random_state=0).fit(X, y)
>>> predictor = model.predictor()
>>> bool((predictor.predict_proba(X) == model.predict_proba(X)).all())
True
"""

from letheon.predictor._answers import Answers, normalise_logs
from letheon.predictor._graph import OnnxGraph, OnnxTable
from letheon.predictor._inputs import NumberInputs, TreeInputs
from letheon.predictor._predictor import (
    EstimatorPredictor,
    Predictor,
    PredictorSource,
    ScorePredictor,
    copy_transformer,
    drop_seeds,
)
from letheon.predictor._scores import AffineScores, TreeScores, binarize

__all__ = [
    "AffineScores",
    "Answers",
    "EstimatorPredictor",
    "NumberInputs",
    "OnnxGraph",
    "OnnxTable",
    "Predictor",
    "PredictorSource",
    "ScorePredictor",
    "TreeInputs",
    "TreeScores",
    "binarize",
    "copy_transformer",
    "drop_seeds",
    "normalise_logs",
]
