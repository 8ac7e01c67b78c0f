"""Ridge classification of texts: few documents are read for a column, and the result is exact."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from letheon import ForgetPipeline
from letheon.preprocessing import TfidfVectorizer
from letheon.preprocessing._terms import TermCounts
from letheon.sums import RidgeClassifier, _solve
from letheon.sums._gram import Gram

N_TEXTS = 240
# Requests that change scales of columns, the vocabulary, and rows of other people.
REQUESTS = range(60)


def make_texts(seed: int) -> tuple[list[str], Any]:
    rng = np.random.default_rng(seed)
    numbers = np.minimum(rng.zipf(1.3, size=(N_TEXTS, 30)), 300)
    return [" ".join(f"w{k}" for k in row) for row in numbers], rng.integers(0, 3, N_TEXTS)


def make_pipeline() -> ForgetPipeline:
    words = TfidfVectorizer(max_features=60, random_state=1)
    return ForgetPipeline([("words", words), ("model", RidgeClassifier(random_state=2))])


def fit_rows(rows: Any, seed: int) -> ForgetPipeline:
    texts, y = make_texts(seed)
    return make_pipeline().fit([texts[k] for k in rows], y[rows], ids=rows)


def forget_all(seed: int, check: Callable[[Any, Any], None]) -> list[Any]:
    """Forget one person at a time; return the receipts."""
    model, receipts = fit_rows(np.arange(N_TEXTS), seed), []
    for person in REQUESTS:
        receipts.append(model.forget([person]))
        model["model"].coef_.sum()  # the products in float64 are kept from here on
        if person % 10 == 9:
            check(model, fit_rows(np.arange(person + 1, N_TEXTS), seed))
    return receipts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_large", [True, False])
def test_any_request_equals_a_fresh_fit(
    seed: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(_solve, "_LARGE", 10)

    def check(model: Any, fresh: Any) -> None:
        assert model.digest() == fresh.digest()
        # Not only close: the coefficients are a function of the integers.
        np.testing.assert_array_equal(model["model"].coef_, fresh["model"].coef_)

    receipts = forget_all(seed, check)
    assert any("columns" in receipt.rebuilt for receipt in receipts)
    model = fit_rows(np.arange(100), seed)
    texts, y = make_texts(seed)
    model.learn(texts[100:], y[100:], ids=range(100, N_TEXTS))
    check(model, fit_rows(np.arange(N_TEXTS), seed))


def test_a_changed_scale_reads_only_documents_with_the_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    transform = TfidfVectorizer._transform_training

    def record(self: TfidfVectorizer, published: Any, block: Any) -> Any:
        sizes.append(block.n_rows)
        return transform(self, published, block)

    model = fit_rows(np.arange(N_TEXTS), 0)
    monkeypatch.setattr(TfidfVectorizer, "_transform_training", record)
    largest = []
    for person in REQUESTS:
        sizes.clear()
        receipt = model.forget([person])
        if receipt.rebuilt.get("columns") == 1:
            largest.append(max(sizes))
    assert len(largest) > 3
    assert np.median(largest) < N_TEXTS / 4


def lose_a_document(self: TermCounts, numbers: Any, without: Any) -> Any:
    return find_ranks(self, numbers, without)[1:]


find_ranks = TermCounts.find_ranks


def keep_old_floats(self: Gram, columns: Any, products: Any, n_clipped: Any) -> None:
    floats, self._floats = self._floats, None
    put(self, columns, products, n_clipped)
    self._floats = floats


put = Gram.put


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [(TermCounts, "find_ranks", lose_a_document), (Gram, "put", keep_old_floats)],
)
def test_planted_bugs(where: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_solve, "_LARGE", 10)
    is_equal = []

    def check(model: Any, fresh: Any) -> None:
        same = np.array_equal(model["model"].coef_, fresh["model"].coef_)
        is_equal.append(same and model.digest() == fresh.digest())

    monkeypatch.setattr(where, name, bug)
    forget_all(0, check)
    assert not all(is_equal)
