"""Monitor a model during a stream of requests and decide when to retrain it (survey, 6.3).

Effectiveness and certifiability are defined by comparison with a retrained model, but unlearning is
meant to avoid retraining. `Monitor` therefore estimates both after every request, with limits
calibrated on rehearsed streams, and retrains before a tolerance is exceeded.
"""

from letheon.monitor._calibrate import Calibration
from letheon.monitor._limits import Limit
from letheon.monitor._monitor import Monitor
from letheon.monitor._panel import check_same_ids, choose_judge, spread_of
from letheon.monitor._reading import History, MonitorTolerances, Reading, assumptions
from letheon.monitor._store import make_record, read_calibration, restore

__all__ = [
    "Calibration",
    "History",
    "Limit",
    "Monitor",
    "MonitorTolerances",
    "Reading",
    "assumptions",
    "check_same_ids",
    "choose_judge",
    "make_record",
    "read_calibration",
    "restore",
    "spread_of",
]
