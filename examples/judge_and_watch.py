"""Choose a method, measure it, and monitor a model during a stream of requests.

The data set is scikit-learn's 569 tumours, assigned to fictional patients with three rows each. Two
exact methods are compared, and the fastest within the tolerance is trained and measured against two
baselines. Then two models are monitored while patients are forgotten. The exact model provably
needs no retrain. The other only approximates a retrain, so a monitor rehearses removals on copies
and retrains before a tolerance can be exceeded.
Run: ``python examples/judge_and_watch.py``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import letheon
from letheon import DaREForestClassifier, DeltaGradClassifier, Monitor, SISAClassifier
from letheon.datasets import Requests
from letheon.monitor import Calibration, MonitorTolerances
from letheon.parallel import one_thread
from letheon.select import Candidate, Comparison, Need, Tolerances, choose

ROWS_PER_PATIENT = 3
N_LEAVING = 30


def make_table() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.str_]]:
    """Return measurements of tumours, whether they are benign, and the patient of each row.

    Logarithms are used instead of a scaler: a scaler fitted on all rows would have to forget too.
    """
    X, y = load_breast_cancer(return_X_y=True)
    patients = np.array([f"patient-{row // ROWS_PER_PATIENT:03}" for row in range(len(X))])
    return np.log1p(X), y, patients


def choose_method(data: tuple[Any, ...]) -> Comparison:
    """State requirements and tolerances, and compare two methods."""
    regression = LogisticRegression(max_iter=2000)
    return choose(
        data,
        need=Need(guarantee="exact"),
        tolerances=Tolerances(effectiveness=0.08),
        candidates=[
            Candidate(DaREForestClassifier(n_estimators=20), efficiency={"random_depth": [0, 3]}),
            Candidate(SISAClassifier(regression), efficiency={"n_shards": [3]}),
        ],
        requests=Requests(kind="person", n=5),
        cv=3,
    )


def watch(model: Any, data: tuple[Any, ...], held_out: NDArray[np.bool_]) -> Monitor:
    """Apply a stream of requests to a monitored model."""
    train = tuple(part[~held_out] for part in data)
    X, y, patients = data
    monitor = Monitor(
        model.fit(*train[:2], ids=train[2]),
        X[held_out],
        y[held_out],
        test_ids=patients[held_out],
        tolerances=MonitorTolerances(effectiveness=0.02, certifiability=3.0),
        retrain_with=train,
        calibration=Calibration(
            kinds=("uniform",), assume="requests come uniformly", n_requests=5, n_looks=3
        ),
        random_state=0,
    )
    for ids in Requests(n=N_LEAVING).stream(None, *train, seed=0):
        monitor.forget(ids)
    return monitor


def main() -> None:
    """Choose a method, fit and measure it, then monitor two models."""
    data = make_table()
    patients = data[2]
    held_out = np.isin(patients, np.unique(patients)[::4])
    comparison = choose_method(data)
    print("chosen:", comparison.best_estimator())
    print(comparison.reason)

    found = letheon.evaluate(
        comparison.best_estimator(), data, Requests(kind="person", n=5), seeds=3
    )
    print(found)
    print("equal to a fresh fit:", found.equal_digests)

    exact = watch(comparison.best_estimator(), data, held_out)
    print(f"exact: {exact.history}")
    estimated = watch(DeltaGradClassifier(), data, held_out)
    print(f"estimated: {estimated.history}")
    for reading in estimated.history:
        if reading.retrained:
            print(reading)
    slow = np.median([reading.proxies["efficiency"] for reading in estimated.history])
    print(f"speed-up of an approximate removal over a retrain, on few rows: {slow:.2g}")
    print("no removed id remains:", len(estimated.model.ids_) == len(exact.model.ids_))


if __name__ == "__main__":
    with one_thread():
        main()
