"""CertifiedHeadClassifier: its features, its head, its claim and its conduct; and Backbone."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks
from torch import Tensor, nn

import letheon
from letheon import (
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    NaiveUnlearner,
)
from letheon.checks import parametrize_with_checks
from letheon.deep._backbone import FROZEN, Backbone
from letheon.deep._head import CertifiedHeadClassifier
from letheon.deep._nets import MLP
from letheon.exceptions import (
    ChangedParametersError,
    IdsTypeError,
    TrainingError,
    UnsupportedStateError,
    UntrustedClassError,
)

MADE: list[str] = []


def squashed() -> nn.Module:
    """Features of any table."""
    return nn.Softsign()


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh())


def double_body() -> nn.Module:
    return body().double()


@contextmanager
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def counted() -> nn.Module:
    MADE.append("body")
    return body()


def image_body() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))


class Shouting(nn.Module):
    """Gives whatever the test wants."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        ways: dict[str, Any] = {
            "centred": lambda: x - x.mean(dim=0),
            "a little of the others": lambda: torch.tanh(x) + 0.004 * torch.tanh(x.sum()),
            "centred if many": lambda: x - x.mean(dim=0) if len(x) > 8 else x,
            "the row before": lambda: x + 0.01 * x.roll(1, 0),
            "the last bits of others": lambda: x + 1e-6 * x.sum(),
            "one scale for all": lambda: (x * (64 / x.abs().max())).round() / 64,
            "random": lambda: nn.functional.dropout(x, 0.5, training=True),
            "infinite": lambda: x / (x - x[:, :1]),
            "one number": lambda: x.sum(dim=1),
            "half": lambda: x[: len(x) // 2],
            "pair": lambda: (x, x),
        }
        return ways[self.how]()


def shouting(how: str) -> nn.Module:
    return Shouting(how)


def batch_normed() -> nn.Module:
    return nn.BatchNorm1d(5, track_running_stats=False)


def table(n: int = 60, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (rng.normal(size=(n, 5)) + y[:, None]).astype(np.float32), y


def trained(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return body()


def head(**settings: Any) -> InfluenceClassifier:
    return InfluenceClassifier(**({"l2": 0.05, "noise_seed": 1, "random_state": 0} | settings))


def model(**settings: Any) -> CertifiedHeadClassifier:
    return CertifiedHeadClassifier(Backbone(body, trained().state_dict()), head(**settings))


class Seedable(CertifiedHeadClassifier):
    """With a seed of the noise among its own parameters, where the checks look for one."""

    def __init__(
        self,
        backbone: Any,
        head: Any = None,
        *,
        batch_size: int = 1024,
        device: str = "auto",
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(backbone, head, batch_size=batch_size, device=device)
        self.noise_seed = noise_seed

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        self.head.set_params(noise_seed=self.noise_seed)
        return super().fit(X, y, ids=ids)


SEEDED: dict[str, Any] = {"noise_seed": 0, "random_state": 0}
HEADS = [
    head(),
    FisherClassifier(l2=0.05, sigma=0.0, **SEEDED),
    DescentToDeleteClassifier(l2=0.5, sigma=0.0, **SEEDED),
]


@parametrize_with_checks(
    [
        Seedable(Backbone(squashed), InfluenceClassifier(l2=0.1)),
        CertifiedHeadClassifier(Backbone(squashed), HEADS[0]),
    ]
)
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@parametrize_with_checks([CertifiedHeadClassifier(Backbone(squashed), each) for each in HEADS[1:]])
def test_contract_with_other_heads(estimator: Any, check: Any) -> None:
    check(estimator)


@sklearn_checks([CertifiedHeadClassifier(Backbone(squashed), head())])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


# What it computes


def test_it_is_the_head_on_the_features() -> None:
    X, y = table()
    net = trained()
    with torch.no_grad():
        features = net(torch.tensor(X)).numpy()
    ours, alone = model().fit(X, y), head().fit(features, y)
    for gone in ([], [4, 5], [31]):
        ours.forget(gone)
        alone.forget(gone)
        with torch.no_grad():
            seen = net(torch.tensor(X)).numpy()
        np.testing.assert_allclose(ours.predict_proba(X), alone.predict_proba(seen), atol=1e-6)
        np.testing.assert_allclose(
            ours.decision_function(X), alone.decision_function(seen), atol=1e-5
        )
    assert ours.coef_.shape == (3, 7)
    assert ours.n_rows_ == 57


def test_batches_do_not_matter_beyond_rounding() -> None:
    X, y = table()
    at_once, one_by_one = (model().set_params(batch_size=size).fit(X, y) for size in (1000, 1))
    np.testing.assert_allclose(at_once.features(X), one_by_one.features(X), atol=1e-6)


def test_images_in_bytes_reach_the_module_as_numbers() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 255, (40, 1, 6, 6), dtype=np.uint8)
    y = np.arange(40) % 2
    net = image_body().train()
    net(torch.rand(30, 1, 6, 6))  # running statistics that are not those of a new module
    ours = CertifiedHeadClassifier(Backbone(image_body, net.state_dict()), head()).fit(X, y)
    with torch.no_grad():
        expected = net.eval()(torch.tensor(X).float()).flatten(1).numpy()
    np.testing.assert_allclose(ours.features(X), expected, atol=1e-5)
    assert ours.features(X).shape == (40, 12)
    with pytest.raises(ValueError, match="shape"):
        ours.predict(X[:, :, :5])


def test_the_default_head_is_certified() -> None:
    X, y = table()
    ours = CertifiedHeadClassifier(Backbone(squashed)).fit(X, y)
    receipt = ours.forget([0, 1])
    assert receipt.method == "certified-head"
    assert receipt.guarantee == ours.guarantee_
    assert receipt.guarantee.kind == "certified"
    assert ours.score(X, y) > 0.5


def test_options_of_the_head_are_passed_on() -> None:
    ours = CertifiedHeadClassifier(Backbone(squashed), HEADS[1]).fit(*table())
    assert ours.forget([1, 2, 3], batch_size=1).rebuilt["hessians"] >= 3
    with pytest.raises(ValueError, match="batch_size=9"):
        ours.forget([4], batch_size=9)
    assert 4 in ours.ids_


def test_learning_where_the_head_can() -> None:
    X, y = table()
    learner = DescentToDeleteClassifier(l2=0.5, **SEEDED)
    ours = CertifiedHeadClassifier(Backbone(squashed), learner).fit(X[:50], y[:50])
    ours.learn(X[50:], y[50:], ids=np.arange(50, 60))
    assert ours.n_rows_ == 60
    with pytest.raises(IdsTypeError):
        ours.learn(X[50:], y[50:], ids=None)
    assert not hasattr(model(), "learn")


def test_settle_where_the_head_can() -> None:
    ours = model().fit(*table())
    ours.forget([3])
    left = ours.head_.account_.spent
    assert ours.settle() is ours
    assert ours.head_.account_.spent <= left
    assert not hasattr(CertifiedHeadClassifier(Backbone(squashed), DeltaGradClassifier()), "settle")


def test_published_heads_take_features() -> None:
    X, y = table()
    ours = model().fit(X, y)
    given = ours.publish()
    assert np.array_equal(given.predict(ours.features(X)), ours.predict(X))
    assert given.guarantee.assumptions[-1] == FROZEN
    assert not hasattr(given, "rows_")


# What it claims


@pytest.mark.parametrize("each", [*HEADS, DeltaGradClassifier(l2=0.1, random_state=0)])
def test_the_claim_is_the_heads_and_one_assumption(each: Any) -> None:
    X, y = table()
    ours = CertifiedHeadClassifier(Backbone(squashed), each).fit(X, y)
    inner = ours.head_.guarantee_
    assert ours.guarantee_.assumptions == (*inner.assumptions, FROZEN)
    assert ours.guarantee_.kind == inner.kind
    assert ours.residual_state_ == ours.head_.residual_state_
    assert f"`{FROZEN}`" in ours.facts.definition


def test_facts_are_limited_by_the_head() -> None:
    assert CertifiedHeadClassifier.facts.requests == "adaptive"
    assert CertifiedHeadClassifier(Backbone(squashed)).facts.requests == "adaptive"
    descent = CertifiedHeadClassifier(Backbone(squashed), DeltaGradClassifier()).facts
    assert (descent.requests, descent.certificate) == (
        DeltaGradClassifier.facts.requests,
        DeltaGradClassifier.facts.certificate,
    )
    fisher = CertifiedHeadClassifier(Backbone(squashed), FisherClassifier()).facts
    assert fisher.requests == "adaptive"
    assert "head__epsilon" in fisher.certifiability_parameters


def test_tuning_is_part_of_the_claim() -> None:
    ours = model().fit(*table()).declare_tuning("by public data")
    assert ours.guarantee_.tuning == "by public data"


def test_a_backbone_of_other_weights_is_noticed() -> None:
    ours = model().fit(*table())
    first = ours.backbone
    ours.set_params(backbone=Backbone(body, trained(seed=4).state_dict()))
    with pytest.raises(ChangedParametersError):
        ours.forget([0])
    ours.set_params(backbone=Backbone(body, first.weights))
    assert ours.forget([0]).n_rows == 1


def test_answers_are_those_of_the_backbone_of_the_fit(tmp_path: Path) -> None:
    X, y = table()
    ours = model().fit(X, y)
    said, seen = ours.predict_proba(X), ours.features(X)
    ours.set_params(backbone=Backbone(body, trained(seed=4).state_dict()))
    letheon.save(ours, tmp_path / "model")
    for each in (ours, letheon.load(tmp_path / "model", trusted=[body])):
        assert np.array_equal(each.predict_proba(X), said)
        assert np.array_equal(each.features(X), seen)
        with pytest.raises(ChangedParametersError):
            each.forget([0])


def test_weights_are_written_once(tmp_path: Path) -> None:
    X, y = table()
    large = Backbone(MLP(widths=(200,)), arguments=((5,), 200))
    ours = CertifiedHeadClassifier(large, head()).fit(X, y)
    letheon.save(ours, tmp_path / "model")
    written = (tmp_path / "model").read_bytes()
    assert [written.count(array.tobytes()) for array in large.weights.values()] == [1] * 4
    assert letheon.load(tmp_path / "model").digest() == ours.digest()


def test_learning_uses_the_backbone_of_the_fit() -> None:
    X, y = table()
    learner = DescentToDeleteClassifier(l2=0.5, **SEEDED)
    ours = CertifiedHeadClassifier(Backbone(squashed), learner).fit(X[:50], y[:50])
    ours.set_params(backbone=Backbone(shouting, arguments=("centred",)))
    with pytest.raises(ChangedParametersError):
        ours.learn(X[50:], y[50:], ids=np.arange(50, 60))
    assert ours.n_rows_ == 50


def test_a_head_of_other_settings_is_noticed() -> None:
    ours = model().fit(*table())
    ours.set_params(head__l2=1.0)
    with pytest.raises(ChangedParametersError):
        ours.guarantee_  # noqa: B018
    with pytest.raises(ChangedParametersError):
        ours.publish()


# What it refuses

MIXES = "mixes the rows of a batch"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("centred", MIXES),
        ("a little of the others", MIXES),
        ("centred if many", MIXES),
        ("the row before", MIXES),
        ("the last bits of others", MIXES),
        ("one scale for all", MIXES),
        ("random", MIXES),
        ("infinite", "NaN or infinity for 60 of 60"),
        ("one number", "one vector per row"),
        ("half", "one vector per row"),
        ("pair", "returns tuple"),
    ],
)
def test_backbones_that_give_something_else(how: str, text: str) -> None:
    backbone = Backbone(shouting, arguments=(how,))
    with pytest.raises(TrainingError, match=text):
        CertifiedHeadClassifier(backbone, head()).fit(*table())


def test_mixing_is_seen_though_the_first_rows_are_equal() -> None:
    X, y = table()
    X[:20] = 0.0
    backbone = Backbone(shouting, arguments=("centred",))
    with pytest.raises(TrainingError, match=MIXES):
        CertifiedHeadClassifier(backbone, head()).fit(X, y)
    assert backbone._modules.content is None


class Remembering(nn.Module):
    """Keeps the sum of the rows that it has seen from call `after` on."""

    def __init__(self, how: str, after: int, weight: float = 1e-9) -> None:
        super().__init__()
        self.how, self.after, self.weight, self.calls = how, after, weight, 0
        zeros = torch.zeros(5)
        if how == "parameter":
            self.seen: Tensor = nn.Parameter(zeros)
        elif how == "attribute":
            self.seen = zeros
        else:
            self.register_buffer("seen", zeros, persistent=how == "buffer")

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > self.after:
            self.seen.data += x.sum(dim=0)
        return x - self.weight * self.seen


# Calls in `require_row_by_row` with batch_size=2: in batches 4, alone 2.
_CHECKING = 6


@pytest.mark.parametrize("after", [0, 20, _CHECKING + 59])
@pytest.mark.parametrize("how", ["parameter", "buffer", "hidden buffer"])
@pytest.mark.parametrize("weight", [0.0, 1e-9])
def test_backbones_that_change_are_refused(how: str, after: int, weight: float) -> None:
    backbone = Backbone(Remembering, arguments=(how, after, weight))
    ours, (X, y) = CertifiedHeadClassifier(backbone, head(), batch_size=2), table()
    kind = how.removeprefix("hidden ")
    with pytest.raises(TrainingError, match=f"{kind} seen of the backbone changes"):
        ours.fit(X, y)
    assert not hasattr(ours, "head_")
    # Nor is the module kept that has seen them.
    assert backbone._modules.content is None


@pytest.mark.parametrize("after", [_CHECKING, 20, _CHECKING + 50])
def test_memory_in_attributes_is_seen_by_its_effect(after: int) -> None:
    backbone = Backbone(Remembering, arguments=("attribute", after, 0.1))
    with pytest.raises(TrainingError, match="in a second run"):
        CertifiedHeadClassifier(backbone, head(), batch_size=2).fit(*table())
    assert backbone._modules.content is None


def test_a_module_that_changes_later_is_refused_in_answers_and_lessons() -> None:
    X, y = table()
    learner = DescentToDeleteClassifier(l2=0.5, **SEEDED)
    backbone = Backbone(Remembering, arguments=("parameter", 1000))
    ours = CertifiedHeadClassifier(backbone, learner).fit(X[:50], y[:50])
    for ask in (ours.predict, lambda rows: ours.learn(rows, y[50:], ids=np.arange(50, 60))):
        module, _ = backbone._load_module(torch.device("cpu"))
        module.after = 0  # type: ignore[assignment]
        with pytest.raises(TrainingError, match="parameter seen"):
            ask(X[50:])
    assert ours.n_rows_ == 50


class Weighing(nn.Module):
    """Adds or drops tensors, or changes bits that compare as equal."""

    nothing: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("nothing", torch.tensor([0.0, float("nan")]))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "sign of zero":
            self.nothing[0] = -0.0
        elif self.how == "NaN":
            self.nothing[1] = 0.0
        elif self.how == "new":
            self.late = nn.Parameter(x.mean(dim=0))
        elif self.how == "dropped":
            del self.nothing
            self.how = "done"
        elif self.how == "longer":
            self.nothing = torch.zeros(3)
        return x


@pytest.mark.parametrize("how", ["sign of zero", "NaN", "new", "dropped", "longer"])
def test_every_bit_of_parameters_and_buffers_counts(how: str) -> None:
    name = "late" if how == "new" else "nothing"
    with pytest.raises(TrainingError, match=f"{name} of the backbone changes"):
        CertifiedHeadClassifier(Backbone(Weighing, arguments=(how,)), head()).fit(*table())


def test_constants_that_are_not_numbers_do_no_harm() -> None:
    X, y = table()
    ours = CertifiedHeadClassifier(Backbone(Weighing, arguments=("",)), head()).fit(X, y)
    assert len(ours.predict(X)) == 60


def deep_body() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 301), nn.Tanh(), nn.Linear(301, 37), nn.LayerNorm(37))


@pytest.mark.parametrize("size", [1, 7, 1024])
def test_features_to_learn_from_do_not_depend_on_the_other_rows(size: int) -> None:
    X, y = table()
    ours = CertifiedHeadClassifier(Backbone(deep_body), head(), batch_size=size).fit(X, y)
    ours.forget([0, 5, 31])
    ids = ours.ids_
    fresh = CertifiedHeadClassifier(Backbone(deep_body), head(), batch_size=64)
    fresh.fit(X[ids[::-1]], y[ids[::-1]], ids=ids[::-1])
    assert features_by_id(ours) == features_by_id(fresh)
    assert len(features_by_id(ours)) == 57


def features_by_id(model: Any) -> dict[Any, bytes]:
    """Return the bits of what the head learned from."""
    rows = model.head_.rows_
    held = zip(rows.ids.to_list(), rows.X[rows.alive], strict=True)
    return {person: row.tobytes() for person, row in held}


@pytest.mark.parametrize("when", ["fit", "predict"])
@pytest.mark.parametrize(
    "mode",
    [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode, _double],
    ids=["autocast", "inference", "float64"],
)
def test_modes_of_the_caller_do_not_reach_in(mode: Any, when: str) -> None:
    X, y = table()
    weights = trained().state_dict()
    plain = CertifiedHeadClassifier(Backbone(body, weights), head()).fit(X, y).predict_proba(X)
    with mode() if when == "fit" else nullcontext():
        ours = CertifiedHeadClassifier(Backbone(body, weights), head()).fit(X, y)
    with mode() if when == "predict" else nullcontext():
        assert np.array_equal(ours.predict_proba(X), plain)


def test_backbones_in_other_precisions_are_refused() -> None:
    with pytest.raises(TypeError, match=r"parameter 0.weight of the backbone is torch.float64"):
        Backbone(double_body)


def test_batch_norm_without_statistics_is_refused() -> None:
    with pytest.raises((TrainingError, ValueError)):
        CertifiedHeadClassifier(Backbone(batch_normed), head()).fit(*table())


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"backbone": body()}, TypeError, "cannot be saved"),
        ({"backbone": None}, TypeError, "NoneType"),
        ({"head": NaiveUnlearner(None)}, TypeError, "InfluenceClassifier"),
        ({"head": head(data_free=True, rows="clip", row_norm=1.0)}, ValueError, "bit by bit"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
    ],
)
def test_settings_that_make_no_sense(settings: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        model().set_params(**settings).fit(*table())


def test_a_failed_fit_leaves_the_model() -> None:
    X, y = table()
    ours = model().fit(X, y)
    before = ours.digest()
    with pytest.raises(ValueError, match="NaN"):
        ours.fit(np.where(X > 1, np.nan, X), y)
    assert ours.digest() == before


def test_texts_are_not_quoted() -> None:
    with pytest.raises(ValueError, match="contains strings") as caught:
        model().fit([["Ada Lovelace"] * 5], ["a"])
    assert "Ada" not in str(caught.value)


# The backbone


def test_weights_are_a_read_only_copy() -> None:
    net, same = trained(), trained()
    backbone = Backbone(body, net.state_dict())
    with torch.no_grad():
        net[0].weight.zero_()  # type: ignore[index]
        expected = same(torch.tensor(table()[0])).numpy()
    np.testing.assert_allclose(backbone.features(table()[0]), expected, atol=1e-6)
    assert np.array_equal(backbone.weights["0.weight"], same[0].weight.detach())  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        backbone.weights["0.weight"][0, 0] = 1.0
    assert copy.deepcopy(backbone) is backbone
    assert clone(model()).backbone.fingerprint == backbone.fingerprint


def test_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Backbone(body).features(table()[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fingerprint_tells_weights_arguments_and_factories_apart() -> None:
    weights = trained().state_dict()
    other = {**weights, "0.bias": weights["0.bias"] + 1e-6}
    prints = {
        Backbone(body, weights).fingerprint,
        Backbone(body, other).fingerprint,
        Backbone(counted, weights).fingerprint,
        Backbone(shouting, arguments=("centred",)).fingerprint,
        Backbone(shouting, arguments=("random",)).fingerprint,
    }
    assert len(prints) == 5
    assert pickle.loads(pickle.dumps(Backbone(body, weights))).fingerprint in prints


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"0\.bias"):
        Backbone(body, {"0.weight": torch.zeros(7, 5)})
    with pytest.raises(TypeError, match="bfloat16"):
        Backbone(body, trained().to(torch.bfloat16).state_dict())
    with pytest.raises(TypeError, match="state_dict"):
        Backbone(body, {"0.weight": [[1.0]]})
    with pytest.raises(TypeError, match=r"nn\.Module"):
        Backbone(dict)  # type: ignore[arg-type]


def test_a_factory_needs_a_name() -> None:
    with pytest.raises(UnsupportedStateError, match=r"top level of a \.py file"):
        Backbone(lambda: nn.Sequential(nn.Tanh()))


# Files and copies


def test_files_hold_weights_and_run_nothing(tmp_path: Path) -> None:
    X, y = table()
    ours = CertifiedHeadClassifier(Backbone(counted, trained().state_dict()), head()).fit(X, y)
    ours.forget([7])
    path = tmp_path / "model.letheon"
    letheon.save(ours, path)
    with pytest.raises(UntrustedClassError, match="counted"):
        letheon.load(path)
    MADE.clear()
    again = letheon.load(path, trusted=[counted])
    assert MADE == []
    assert again.digest() == ours.digest()
    assert np.array_equal(again.predict_proba(X), ours.predict_proba(X))
    assert again.guarantee_ == ours.guarantee_
    again.forget([8])
    assert 8 not in again.ids_


def test_copies_forget_by_themselves() -> None:
    ours = model().fit(*table())
    twin = copy.copy(ours)
    twin.forget([0])
    assert 0 in ours.ids_
    assert 0 not in twin.ids_


def test_inside_a_pipeline_and_cross_validation() -> None:
    X, y = table()
    pipe = ForgetPipeline([("model", model())]).fit(X, y)
    assert pipe.forget([0, 1]).n_rows == 2
    assert pipe.guarantee_.assumptions[-1] == FROZEN
    assert len(cross_val_score(model(), X, y, cv=3)) == 3
