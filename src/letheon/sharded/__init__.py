"""SISA (sharded, isolated, sliced and aggregated training), and its expected cost."""

from letheon.checkpoint_home import sweep_checkpoints
from letheon.sharded._plan import Plan, compare_plans, epochs_per_stage, plan, shard_counts
from letheon.sharded._shards import Assignment, warn_if_crowded
from letheon.sharded._sisa import SISAClassifier, SISARegressor

__all__ = [
    "Assignment",
    "Plan",
    "SISAClassifier",
    "SISARegressor",
    "compare_plans",
    "epochs_per_stage",
    "plan",
    "shard_counts",
    "sweep_checkpoints",
    "warn_if_crowded",
]
