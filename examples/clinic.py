"""A forest on patient visits with missing measurements; patients may request erasure.

The table is synthetic: one row per patient and visit. Nothing is imputed, because an imputed value
would be learned from all patients; the forest handles missing values itself. Patients are forgotten
one by one, lazily, and the dropped subtrees are rebuilt at night. Run: ``python
examples/clinic.py``.
"""

import numpy as np
from numpy.typing import NDArray

from letheon import DaREForestClassifier

N_PATIENTS, N_COLUMNS = 2_000, 12


def make_table(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.str_], NDArray[np.str_]]:
    """Return measurements, diagnoses and the patient of each visit."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(N_PATIENTS), rng.integers(1, 5, N_PATIENTS))
    X = rng.normal(size=(N_PATIENTS, N_COLUMNS))[patient]
    X += 0.3 * rng.normal(size=X.shape)
    risk = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=len(X))
    diagnosis = np.array(["well", "watch", "treat"])[np.searchsorted([0.0, 1.5], risk)]
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, diagnosis, np.array([f"patient-{number}" for number in patient])


def main() -> None:
    """Train, estimate the cost of removals, forget, settle, check."""
    X, diagnosis, patients = make_table()
    model = DaREForestClassifier(random_state=0).fit(X, diagnosis, ids=patients)
    print(f"{model.n_rows_} visits of {len(model.ids_)} patients")

    leaving = [f"patient-{number}" for number in range(0, N_PATIENTS, 100)]
    costs = [model.forget_cost([name]).share for name in leaving]
    print(f"one patient costs {min(costs):.1%} to {max(costs):.1%} of a retrain")

    # Not chosen by cost: the guarantee covers only requests that do not depend on the model.
    work = [model.forget([name]).work for name in leaving]
    model.settle()
    print(f"{len(leaving)} patients forgotten, {np.mean(work):.1%} of a retrain each")

    stay = ~np.isin(patients, leaving)
    fresh = DaREForestClassifier(random_state=model.seed_)
    fresh.fit(X[stay], diagnosis[stay], ids=patients[stay])
    print("equal to a fresh fit:", fresh.digest() == model.digest())


if __name__ == "__main__":
    main()
