"""The four properties of the survey, measured on a model that forgets.

`letheon.evaluate` runs an unlearner and two named baselines on the same requests, over several
seeds, and returns an `Evaluation`.
"""

from letheon.evaluation._baselines import ORDINARY, SAME, require_task
from letheon.evaluation._contender import named
from letheon.evaluation._evaluate import evaluate, with_canaries
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._metric import Metric, require_function
from letheon.evaluation._problem import Problem, Rows
from letheon.evaluation._trial import Trial
from letheon.evaluation._usual import best_of, prepared, usual_models

__all__ = [
    "ORDINARY",
    "SAME",
    "Evaluation",
    "Metric",
    "Problem",
    "Rows",
    "Trial",
    "best_of",
    "evaluate",
    "named",
    "prepared",
    "require_function",
    "require_task",
    "usual_models",
    "with_canaries",
]
