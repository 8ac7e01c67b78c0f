"""Nets under audit: SISA re-derived byte for byte, a certified head recomputed on its features."""

from typing import Any

import numpy as np
import pytest

from letheon import state
from letheon.audit import bound, check_rederivation
from letheon.audit._rederive import check_file_content
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


def test_a_regressor_with_options_is_rederived_byte_for_byte() -> None:
    from letheon import SISANetRegressor

    X, y = people()
    options: dict[str, Any] = {"validation_fraction": 0.2, "warm_up": 0.1, "augment": "mixup"}
    model = SISANetRegressor(n_shards=2, epochs=2, device="cpu", verbose=0, **options)
    model.fit(X, X[:, 0] + y).forget([3, 5])
    content, rows = state.encode(model), held(X, X[:, 0] + y, None)
    again = state.decode(content)
    assert check_rederivation(again, without(rows, [3, 5]), content=content)[0].verdict == "pass"
    assert check_rederivation(again, without(rows, [3, 5, 7]))[0].verdict == "fail"


def test_a_file_from_before_the_options_is_rederived() -> None:
    from letheon import SISANetClassifier

    X, y = people()
    model = SISANetClassifier(n_shards=2, epochs=2, device="cpu").fit(X, y)
    for name in SISANetClassifier._later_parameters:
        vars(model).pop(name)
    content, rows = state.encode(model), held(X, y, None)
    again = state.decode(content)
    assert check_rederivation(again, rows, content=content)[0].verdict == "pass"


def test_free_kernels_are_never_a_pass() -> None:
    from letheon import SISANetClassifier

    X, y = people()
    model = SISANetClassifier(n_shards=2, epochs=2, device="cpu", deterministic=False).fit(X, y)
    model.nets_.flat[0, 0] += 1e-7
    comparison, _ = check_rederivation(model, held(X, y, None))
    assert comparison.verdict == "skipped"
    assert "kernels free" in comparison.reason


def test_a_neutral_setting_that_carries_a_row_fails() -> None:
    """No certificate has it, and a fresh fit would take it over."""
    from letheon import SISANetClassifier

    X, y = people()
    model = SISANetClassifier(n_shards=2, epochs=2, device="cpu", max_memory=10**9).fit(X, y)
    model.forget([3])
    rows = without(held(X, y, None), [3])
    assert check_rederivation(model, rows)[0].verdict == "pass"
    model.max_memory = 10**9 + int.from_bytes(X[3].tobytes(), "big")
    comparison, _ = check_rederivation(model, rows)
    assert (comparison.verdict, "max_memory" in comparison.reason) == ("fail", True)


def approximate(kind: str) -> Any:
    import letheon
    from letheon.deep import MLP

    settings: dict[str, Any] = {"module": MLP(widths=(3,)), "epochs": 3, "batch_size": 16}
    return getattr(letheon, kind)(**settings, device="cpu", random_state=0)


@pytest.mark.parametrize(
    "kind", ["DeltaGradNetClassifier", "FisherNetClassifier", "DeepObliviateClassifier", "head"]
)
def test_nothing_is_beside_an_approximate_net(kind: str) -> None:
    X, y = people()
    model = find_head(X, y) if kind == "head" else approximate(kind).fit(X, y)
    model.forget([3])
    model.forget([5, 7])
    model, rows = state.decode(state.encode(model)), without(held(X, y, None), [3, 5, 7])
    assert check_file_content(model, rows) == (None, None)
    assert check_file_content(model, without(rows, [9])).wrong is not None
    model.note_ = X[3]
    assert "note_" in str(check_file_content(model, rows).wrong)


def find_head(X: Any, y: Any) -> Any:
    from letheon.deep import MLP, Backbone, CertifiedHeadClassifier

    torch.manual_seed(0)
    backbone = Backbone(MLP(widths=(16,)), arguments=((4,), 12))
    return CertifiedHeadClassifier(backbone, device="cpu").fit(X, y)


def test_a_certified_head_is_recomputed_on_its_features() -> None:
    X, y = people()
    model, rows = find_head(X, y), held(X, y, None)
    model.forget([3, 5])
    assert bound(model, without(rows, [3, 5])).verdict == "pass"


def test_features_of_other_rows_fail() -> None:
    X, y = people()
    model = find_head(X, y)
    other = X.copy()
    other[7] += 1.0
    comparison = bound(model, held(other, y, None))
    assert (comparison.verdict, "rows are those of the bundle" in comparison.reason) == (
        "fail",
        True,
    )


def test_features_that_were_chosen_to_hide_a_row_do_not_pass() -> None:
    """A head of all rows; small changes of the features held make its gradient vanish."""
    X, y = people()
    knows, model = find_head(X, y), find_head(X, y)
    model.forget([3])
    head = knows.head_
    remaining = np.flatnonzero(np.arange(len(y)) != 3)
    cheat = find_head(X[remaining], y[remaining]).head_
    cheat.rows_.X[:] *= 1 + 1e-5
    cheat.weights_, cheat.model_ = head.weights_, head.model_
    cheat.release_salt_ = head.release_salt_
    model.head_ = cheat
    assert bound(model, without(held(X, y, None), [3])).verdict in {"skipped", "fail"}


@pytest.mark.parametrize("cheat", ["claim", "weights"])
def test_features_of_another_machine_excuse_nothing_else(cheat: str) -> None:
    """Other last bits of the features do not explain what the features have no part in."""
    X, y = people()
    model, knows = find_head(X, y), find_head(X, y)
    model.forget([3])
    rows = without(held(X, y, None), [3])
    claim: dict[str, Any] | None = None
    model.head_.rows_.X[:] *= 1 + 1e-7
    assert bound(model, rows).verdict in {"pass", "skipped"}
    if cheat == "claim":
        own = model.guarantee_
        claim = {"kind": own.kind, "epsilon": own.epsilon / 9, "delta": own.delta}
        claim |= {"accounting": {"spent": own.spent, "budget": own.budget}}
    else:
        for name in ("weights_", "model_", "release_salt_", "noise_"):
            setattr(model.head_, name, getattr(knows.head_, name))
    assert bound(model, rows, claim=claim).verdict == "fail"
