"""Where the work runs: one BLAS thread per task, and tasks anywhere joblib can send them."""

from letheon.parallel.tasks import run_tasks
from letheon.parallel.threads import one_thread

__all__ = ["one_thread", "run_tasks"]
