"""The four properties of the survey, measured on a model that forgets.

`letheon.evaluate` runs an unlearner and two named baselines on the same requests, over several
seeds, and returns an `Evaluation`.
"""

from letheon.evaluation._baselines import (
    ORDINARY,
    SAME,
    CrossValidation,
    choose_best,
    named,
    prepare_model,
    require_task,
    usual_models,
)
from letheon.evaluation._evaluate import evaluate, with_canaries
from letheon.evaluation._evaluation import Evaluation, make_frame
from letheon.evaluation._problem import Metric, Problem, Rows, require_function
from letheon.evaluation._trial import Trial

__all__ = [
    "ORDINARY",
    "SAME",
    "CrossValidation",
    "Evaluation",
    "Metric",
    "Problem",
    "Rows",
    "Trial",
    "choose_best",
    "evaluate",
    "make_frame",
    "named",
    "prepare_model",
    "require_function",
    "require_task",
    "usual_models",
    "with_canaries",
]
