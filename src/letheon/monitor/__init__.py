"""Watch a model through a stream of requests and say when to train it again (survey, 6.3).

Effectiveness and certifiability compare with a naively retrained model, which is just what one
wants to avoid. `Monitor` computes proxies of both after every request, from limits that were
calibrated on rehearsed streams, and retrains before the tolerances are passed.
"""

from letheon.monitor._calibrate import Calibration
from letheon.monitor._limits import Limit
from letheon.monitor._monitor import Monitor
from letheon.monitor._panel import judge_for, same_people, spread_of
from letheon.monitor._reading import History, Reading, Tolerances, assumptions
from letheon.monitor._store import read_calibration, record_of, restore

__all__ = [
    "Calibration",
    "History",
    "Limit",
    "Monitor",
    "Reading",
    "Tolerances",
    "assumptions",
    "judge_for",
    "read_calibration",
    "record_of",
    "restore",
    "same_people",
    "spread_of",
]
