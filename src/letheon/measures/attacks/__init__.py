r"""Attacks that search an unlearned model for traces of forgotten people, each with a null floor.

An attack is a frozen dataclass with settings. ``attack.run(unlearner, X, y, forget=...)`` trains
clones of an unfitted unlearner and returns `AttackResult`\ s. The underlying functions need only
arrays. An attack can show that something was not forgotten. It cannot prove forgetting: a better
attack may find more.
"""

from typing import Any

from letheon.measures.attacks._backdoor import (
    ImageTrigger,
    TabularTrigger,
    deletion_confidence,
    errors,
    majority_errors,
    queries_needed,
    threshold,
)
from letheon.measures.attacks._before_after import BeforeAfter
from letheon.measures.attacks._controls import FineTuneOnly, KeepsEverything
from letheon.measures.attacks._lira import ULiRA, cross_lira, lira
from letheon.measures.attacks._margins import (
    KLOM,
    ForgettingQuality,
    forgetting_epsilon,
    forgetting_points,
    klom,
)
from letheon.measures.attacks._result import AttackResult, auc, roc_curve, tpr_at_fpr
from letheon.measures.attacks._rmia import RMIA, rmia, tune_offline
from letheon.measures.attacks._shadows import margins
from letheon.measures.attacks._verify import BackdoorTest

# name -> attack class
ALL: dict[str, Any] = {
    "u-lira": ULiRA,
    "rmia": RMIA,
    "klom": KLOM,
    "forgetting-quality": ForgettingQuality,
    "backdoor": BackdoorTest,
    "before-after": BeforeAfter,
}

__all__ = [
    "ALL",
    "KLOM",
    "RMIA",
    "AttackResult",
    "BackdoorTest",
    "BeforeAfter",
    "FineTuneOnly",
    "ForgettingQuality",
    "ImageTrigger",
    "KeepsEverything",
    "TabularTrigger",
    "ULiRA",
    "auc",
    "cross_lira",
    "deletion_confidence",
    "errors",
    "forgetting_epsilon",
    "forgetting_points",
    "klom",
    "lira",
    "majority_errors",
    "margins",
    "queries_needed",
    "rmia",
    "roc_curve",
    "threshold",
    "tpr_at_fpr",
    "tune_offline",
]
