"""A stream of erasure requests with a certified method, each applied in about a millisecond.

The table is synthetic: one row per customer and month. A logistic regression is trained once and
published with secret noise. Then customers are forgotten day by day. Each removal takes one Newton
step, which reads no other row, and adds new noise. Every evening the model is saved (this file is
private) and published (without rows and without the parameters before noise). Run: ``python
examples/erasure_stream.py``.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import letheon
from letheon import InfluenceClassifier
from letheon.parallel import one_thread

N_CUSTOMERS, N_MONTHS, N_COLUMNS = 10_000, 4, 25
N_DAYS, N_LEAVING = 5, 100

Floats = NDArray[np.float64]


def make_table(seed: int = 0) -> tuple[Floats, NDArray[np.str_], NDArray[np.int64]]:
    """Return features, whether the customer stays, and the customer of each row."""
    rng = np.random.default_rng(seed)
    customers = np.repeat(np.arange(N_CUSTOMERS), N_MONTHS)
    X = rng.normal(size=(N_CUSTOMERS, N_COLUMNS))[customers]
    X += 0.5 * rng.normal(size=X.shape)
    score = X @ rng.normal(size=N_COLUMNS) + 2 * rng.normal(size=len(X))
    return X, np.where(score > 0, "stays", "leaves"), customers


def new_model() -> InfluenceClassifier:
    """Return the unfitted model.

    Each row is scaled to norm 1 without using other rows: a scaler fitted on all rows would have to
    forget too.
    """
    return InfluenceClassifier(
        l2=1e-4, rows="normalize", row_norm=1.0, epsilon=1.0, delta=1e-5, sigma=0.1
    )


def main() -> None:
    """Train, serve five days of requests, save, load, publish, compare with a retrain."""
    X, y, customers = make_table()
    model = new_model().fit(X, y, ids=customers)
    print(f"{model.n_rows_} rows of {len(model.ids_)} customers, accuracy {model.score(X, y):.1%}")

    leaving = np.random.default_rng(1).permutation(N_CUSTOMERS)[: N_DAYS * N_LEAVING]
    published = model.publish()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "private.letheon"
        for day, people in enumerate(np.split(leaving, N_DAYS), start=1):
            receipts = [model.forget([int(person)]) for person in people]
            account, claim = model.account_, receipts[-1].guarantee
            print(
                f"day {day}: {len(people)} customers, "
                f"{1e3 * np.mean([receipt.seconds for receipt in receipts]):.2f} ms each; "
                f"{claim.kind}, {account.spent / account.limit:.0%} of the budget; so far "
                f"{account.exact} residuals measured, {account.retrains} retrains"
            )
            letheon.save(model, file)
            published = model.publish()
            model = letheon.load(file)

    # For operators only: it needs the rows and the secret parameters.
    residual, account = model.exact_residual(), model.account_
    print("account covers the residual:", residual <= account.spent * (1 + 1e-9))
    print("within the budget:", account.spent <= account.limit)
    print("no removed customer remains:", not np.isin(leaving, model.ids_).any())

    stay = ~np.isin(customers, leaving)
    begin = time.perf_counter()
    fresh = new_model().fit(X[stay], y[stay])
    print(f"a retrain takes {1e3 * (time.perf_counter() - begin):.0f} ms")
    ours, theirs = (float(np.mean(each.predict(X[stay]) == y[stay])) for each in (published, fresh))
    print(f"accuracy after all requests: {ours:.2%}, retrained with other noise: {theirs:.2%}")
    print("within a point of a retrain:", abs(ours - theirs) < 0.01)


if __name__ == "__main__":
    with one_thread():
        main()
