"""Parallel execution: one BLAS thread per task, and tasks on any joblib backend."""

from letheon.parallel.tasks import run_tasks
from letheon.parallel.threads import ROWS_TOGETHER, one_thread

__all__ = ["ROWS_TOGETHER", "one_thread", "run_tasks"]
