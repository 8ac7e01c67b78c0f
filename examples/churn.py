"""A churn model; customers have several rows each and may request erasure.

The table is synthetic: one row per customer and month. A pipeline (one-hot encoding, scaling,
logistic regression) is trained inside SISA, once per shard, so nothing that was learned from a
customer is outside that customer's shard.
Needs pandas, which letheon itself does not need: ``pip install pandas``.
Run: ``python examples/churn.py``.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import letheon
from letheon import SISAClassifier


def make_table(n_customers: int = 400, seed: int = 0) -> pd.DataFrame:
    """Return one row per customer and month; the label is whether the customer left."""
    rng = np.random.default_rng(seed)
    months = rng.integers(1, 7, n_customers)
    customer = np.repeat(np.arange(n_customers), months)
    contract = rng.choice(["monthly", "yearly"], n_customers)[customer]
    calls = rng.poisson(2 + 2 * (contract == "monthly"))
    spent = rng.gamma(4, 10, len(customer))
    odds = 0.8 * calls - 0.05 * spent - 1.5 * (contract == "yearly")
    return pd.DataFrame(
        {
            "customer": [f"c-{number}" for number in customer],
            "contract": contract,
            "calls": calls,
            "spent": spent,
            "churned": rng.random(len(customer)) < 1 / (1 + np.exp(-odds)),
        }
    )


def new_model(random_state: int = 0) -> SISAClassifier:
    """Return the unfitted model."""
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["contract"]),
        (StandardScaler(), ["calls", "spent"]),
    )
    pipeline = make_pipeline(columns, LogisticRegression())
    return SISAClassifier(pipeline, n_shards=8, random_state=random_state)


def fit(model: SISAClassifier, table: pd.DataFrame) -> SISAClassifier:
    """Fit the model on a table, with customers as ids."""
    features = table[["contract", "calls", "spent"]]
    return model.fit(features, table["churned"], ids=table["customer"])


def main() -> None:
    """Train, forget three customers, check, save, load and forget again."""
    table = make_table()
    model = fit(new_model(), table)
    print(f"{model.n_rows_} rows of {len(model.ids_)} customers in {model.n_shards} shards")

    leaving = ["c-17", "c-204", "c-310"]
    receipt = model.forget(leaving)
    print(f"forgot {receipt.n_ids} customers, {receipt.n_rows} rows, {receipt.guarantee.kind}")
    print(f"retrained: {receipt.rebuilt['shards']} of {model.n_shards} shards")

    rest = table[~table["customer"].isin(leaving)]
    fresh = fit(new_model(random_state=model.seed_), rest)
    print("equal to a fresh fit:", fresh.digest() == model.digest())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "churn.letheon"
        letheon.save(model, path)
        loaded = letheon.load(path)
    loaded.forget(["c-5"])
    model.forget(["c-5"])
    print("loaded model gives the same result:", loaded.digest() == model.digest())


if __name__ == "__main__":
    main()
