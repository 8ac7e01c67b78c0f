"""Evaluation of a forgetting model by the four properties of the survey.

`letheon.evaluate` runs an unlearner and two baselines on the same requests with several seeds, and
returns an `Evaluation`.
"""

from letheon.evaluation._baselines import (
    ORDINARY,
    SAME,
    BestModel,
    choose_best,
    list_ordinary,
)
from letheon.evaluation._evaluate import evaluate, with_canaries
from letheon.evaluation._evaluation import Evaluation, make_frame
from letheon.evaluation._problem import LearningProblem, Metric, require_function
from letheon.evaluation._trial import Trial
from letheon.evaluation._usual import CrossValidation, name_model, usual_models

__all__ = [
    "ORDINARY",
    "SAME",
    "BestModel",
    "CrossValidation",
    "Evaluation",
    "LearningProblem",
    "Metric",
    "Trial",
    "choose_best",
    "evaluate",
    "list_ordinary",
    "make_frame",
    "name_model",
    "require_function",
    "usual_models",
    "with_canaries",
]
