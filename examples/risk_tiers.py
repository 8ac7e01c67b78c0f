"""Risk tiers: people who are likely to request erasure are placed where removal is cheap.

One person in ten is likely to request erasure, and this is known before training. With `risk_edges`
these people share half of the shards and the later half of the slices. The method is exact with and
without tiers. Run: ``python examples/risk_tiers.py``.
"""

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier

from letheon import SISAClassifier

N_PEOPLE, N_LEAVING = 1_000, 20


def new_model(risk_edges: list[float] | None) -> SISAClassifier:
    """Return the unfitted model; people with a risk of 0.5 or more form one tier."""
    net = SGDClassifier(loss="log_loss")
    return SISAClassifier(
        net, n_shards=4, n_slices=8, epochs=9, risk_edges=risk_edges, random_state=0
    )


def mean_work(model: SISAClassifier, leaving: list[int]) -> float:
    """Return the mean work of one removal, as a share of a retrain."""
    return float(np.mean([model.forget([person]).work for person in leaving]))


def main() -> None:
    """Compare the work of forgetting high-risk people, with and without tiers."""
    X, y = make_classification(N_PEOPLE, n_features=10, random_state=0)
    risk = np.where(np.arange(N_PEOPLE) % 10 == 0, 0.9, 0.1)
    leaving = np.flatnonzero(risk > 0.5)[:N_LEAVING].tolist()

    plain = new_model(None).fit(X, y)
    tiered = new_model([0.5]).fit(X, y, risk=risk)
    without, with_tiers = mean_work(plain, leaving), mean_work(tiered, leaving)
    print(f"mean work without tiers: {without:.1%} of a retrain")
    print(f"mean work with tiers:    {with_tiers:.1%} of a retrain")

    keep = np.setdiff1d(np.arange(N_PEOPLE), leaving)
    fresh = new_model([0.5]).fit(X[keep], y[keep], ids=keep, risk=risk[keep])
    print("equal to a fresh fit:", fresh.digest() == tiered.digest())


if __name__ == "__main__":
    main()
