"""Purchase: what shoppers bought, one row per customer."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.datasets._tables import first_line, read_columns
from letheon.exceptions import DatasetFormatError

__all__ = ["SOURCES", "TOP"]

TOP = 600


def read_purchase(job: Job) -> Loaded:
    """Read Purchase: what of the 600 categories sold most a customer has ever bought.

    Rows are customers whose answer to an offer is known; y: did they come back? The 600
    categories are those of the published file, whoever leaves. The file of transactions has 350
    million lines and is read once, which takes minutes.
    """
    with job.text(1) as lines:
        history = read_columns(lines)
    customers = history["id"].map(int, np.int64)
    y = history["repeater"].map(lambda text: text.strip().lower() in ("t", "true", "1"), np.int64)
    with job.text(0) as lines:
        bought, n_sold, categories = _baskets(lines, customers.tolist())
    best = np.argsort(-n_sold, kind="stable")[:TOP]
    names = tuple(f"category {categories[place]}" for place in best)
    return Loaded(bought[:, best].astype(np.float32), y, customers, feature_names=names)


def _baskets(
    lines: Iterable[str], customers: list[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], list[str]]:
    """Return customers x categories, how often each category was sold, and their names."""
    lines = iter(lines)
    header = first_line(lines).strip().split(",")
    if "id" not in header or "category" not in header:
        raise DatasetFormatError(f"no columns 'id' and 'category' in transactions.csv: {header}")
    place_id, place_category = header.index("id"), header.index("category")
    last = max(place_id, place_category) + 1
    rows = {str(customer): row for row, customer in enumerate(customers)}
    places: dict[str, int] = {}
    n_sold: list[int] = []
    pairs: list[set[int]] = [set() for _ in customers]
    for line in lines:
        cells = line.split(",", last)
        if len(cells) < last:
            raise DatasetFormatError(f"a row has {len(cells)} cells: {line[:40]!r}")
        place = places.setdefault(cells[place_category], len(places))
        if place == len(n_sold):
            n_sold.append(0)
        n_sold[place] += 1
        row = rows.get(cells[place_id])
        if row is not None:
            pairs[row].add(place)
    bought = np.zeros((len(customers), len(places)), np.bool_)
    for row, found in enumerate(pairs):
        bought[row, list(found)] = True
    return bought, np.array(n_sold, np.int64), list(places)


SOURCES = (
    Source(
        info=DatasetInfo(
            name="purchase",
            title="Acquire Valued Shoppers Challenge",
            folder="purchase",
            files=(
                DataFile(names=("transactions.csv",)),
                DataFile(names=("trainHistory.csv",)),
            ),
            provider="Kaggle (an account is needed)",
            page="https://www.kaggle.com/c/acquire-valued-shoppers-challenge/data",
            licence="terms of the competition; may not be passed on",
            citation="Kaggle (2014), Acquire Valued Shoppers Challenge",
            subject_id="id (one row each)",
            survey=SurveyRow(dimensionality="600", size="250,000", classes="2"),
            note=(
                "The published experiments of SISA took clusters of the rows as labels, which "
                "depend on everybody; here y is the provider's answer (repeater), known for "
                "160,057 customers. Fixed: the list of the 600 categories sold most."
            ),
        ),
        read=read_purchase,
        stand_ins={"": StandIn(n_rows=160_057, n_flags=TOP, shares=(0.729, 0.271))},
    ),
)
