"""Nets under audit: SISA re-derived byte for byte, a certified head recomputed on its features."""

from typing import Any

import numpy as np
import pytest

from letheon import state
from letheon.audit import bound, check_rederivation
from tests.audit.people import held, without

torch = pytest.importorskip("torch")


def people() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


def test_a_net_is_rederived_byte_for_byte() -> None:
    from letheon import SISANetClassifier

    X, y = people()
    model = SISANetClassifier(n_shards=2, epochs=2, device="cpu").fit(X, y)
    model.forget([3, 5])
    content, rows = state.encode(model), held(X, y, None)
    again = state.decode(content)
    assert check_rederivation(again, without(rows, [3, 5]), content=content)[0].verdict == "pass"
    assert check_rederivation(again, without(rows, [3, 5, 7]))[0].verdict == "fail"


def test_free_kernels_are_never_a_pass() -> None:
    from letheon import SISANetClassifier

    X, y = people()
    model = SISANetClassifier(n_shards=2, epochs=2, device="cpu", deterministic=False).fit(X, y)
    model.nets_.flat[0, 0] += 1e-7
    found, _ = check_rederivation(model, held(X, y, None))
    assert found.verdict == "skipped"
    assert "kernels free" in found.reason


def head_of(X: Any, y: Any) -> Any:
    from letheon.deep import MLP, Backbone, CertifiedHeadClassifier

    torch.manual_seed(0)
    backbone = Backbone(MLP(widths=(16,)), arguments=((4,), 12))
    return CertifiedHeadClassifier(backbone, device="cpu").fit(X, y)


def test_a_certified_head_is_recomputed_on_its_features() -> None:
    X, y = people()
    model, rows = head_of(X, y), held(X, y, None)
    model.forget([3, 5])
    assert bound(model, without(rows, [3, 5])).verdict == "pass"


def test_features_of_other_rows_fail() -> None:
    X, y = people()
    model = head_of(X, y)
    other = X.copy()
    other[7] += 1.0
    found = bound(model, held(other, y, None))
    assert (found.verdict, "features-are-those-of-the-rows" in found.reason) == ("fail", True)
