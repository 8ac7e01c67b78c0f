"""DeltaGrad for nets as users meet it: settings, modules, requests, files, and what it keeps."""

import copy
import os
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn
from torch.nn import functional

from letheon import checks, load, save
from letheon.deep._deltagrad import DeltaGradNetClassifier, _slot_table
from letheon.deep._loop import Progress
from letheon.deep._nets import CNN, MLP
from letheon.deep._replay import NetDescent, NetReplay
from letheon.exceptions import CheckpointError, EmptyModelError, TrainingError, UnknownIdError
from letheon.state import encode

rng = np.random.default_rng(0)
Y = np.arange(40) % 3
X = (rng.normal(size=(40, 4)) + Y[:, None]).astype(np.float32)


def make(**more: Any) -> DeltaGradNetClassifier:
    settings: dict[str, Any] = {
        "module": MLP(widths=(3,)),
        "epochs": 8,
        "batch_size": 16,
        "burn_in": 2,
    }
    return DeltaGradNetClassifier(**settings | {"device": "cpu", "random_state": 0} | more)


def fitted(**more: Any) -> DeltaGradNetClassifier:
    return make(**more).fit(X, Y)


@parametrize_with_checks([make(batch_size=64, epochs=30, learning_rate=0.5)])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks(
    [make(module=MLP(widths=()), batch_size=64, epochs=10, learning_rate=0.2, period=3)]
)
def test_forgetting_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


BAD: list[dict[str, Any]] = [
    {"epochs": 0},
    {"batch_size": 0},
    {"learning_rate": 0.0},
    {"weight_decay": -1.0},
    {"schedule": "linear"},
    {"loss": "hinge"},
    {"burn_in": -1},
    {"period": 0},
    {"period": 1.5},
    {"history": 0},
    {"min_curvature": 0.0},
    {"max_smoothness": 0.0},
    {"max_error": 0.0},
    {"max_distance": -1.0},
    {"max_memory": -1},
    {"module": 3},
    {"device": "tpu"},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_settings_leave_the_model_as_it_was(bad: dict[str, Any]) -> None:
    model = fitted(epochs=1)
    before = encode(model.path_)
    with pytest.raises(ValueError, match=next(iter(bad))):
        model.set_params(**bad).fit(X, Y)
    assert encode(model.path_) == before


class HiddenDropout(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class HiddenMixing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


def _hidden_dropout(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return HiddenDropout(shape[0], n_classes)


def _hidden_mixing(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return HiddenMixing(shape[0], n_classes)


class Attentive(nn.Module):
    """Its dropout is too rare to show in a few rows."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(4, 1, dropout=1e-4, batch_first=True)
        self.out = nn.Linear(4, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, None, :]
        seen: Tensor = self.look(rows, rows, rows, need_weights=False)[0]
        logits: Tensor = self.out(seen[:, 0])
        return logits


def _attentive(_: tuple[int, ...], n_classes: int) -> nn.Module:
    return Attentive(n_classes)


class RareDropout(nn.Linear):
    """Drops so rarely that a few rows do not show it."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), 1e-6, self.training)


def _rare_dropout(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return RareDropout(shape[0], n_classes)


REFUSED = {
    "layer 'look' .MultiheadAttention. draws random numbers": _attentive,
    "layer 'dropout1' .Dropout. draws random numbers": MLP(widths=(3,), dropout=0.5),
    "layer 'norm1' .BatchNorm1d. mixes the rows": MLP(widths=(3,), batch_norm=True),
    "the module or the loss draws random numbers": _hidden_dropout,
    "module or the loss draws random numbers": _rare_dropout,
    "the module or the loss mixes the rows": _hidden_mixing,
}


@pytest.mark.parametrize(("text", "module"), REFUSED.items(), ids=list(REFUSED))
def test_modules_whose_rows_cannot_be_taken_out_are_refused(text: str, module: Any) -> None:
    model = make(module=module)
    with pytest.raises(TrainingError, match=text):
        model.fit(X, Y)
    assert "seed_" not in vars(model)


def test_mixing_is_seen_though_the_first_rows_are_equal() -> None:
    padded, labels = X.copy(), Y.copy()
    padded[:20], labels[:20] = 0.0, 0
    with pytest.raises(TrainingError, match="mixes the rows"):
        make(module=_hidden_mixing).fit(padded, labels)


def centred_loss(logits: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses + (losses - losses.mean()) ** 2


def test_losses_that_look_at_the_whole_batch_are_refused() -> None:
    with pytest.raises(TrainingError, match="the loss mixes the rows"):
        fitted(loss=centred_loss)


def test_training_that_diverges_is_an_error_that_names_the_epoch() -> None:
    with pytest.raises(TrainingError, match=r"diverged in epoch \d"):
        fitted(learning_rate=1e30)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets)


def test_loss_of_another_shape_is_an_error() -> None:
    with pytest.raises(TrainingError, match="one number per row"):
        fitted(loss=mean_loss)


class Interrupted(Exception):
    pass


def interrupt(progress: Progress) -> None:
    if progress.epoch == 5:
        raise Interrupted


def full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_requests_that_fail_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(max_memory=0)
    before, digest, said = encode(model), model.digest(), model.predict_proba(X)
    with pytest.raises(UnknownIdError):
        model.forget([1, 99])
    with pytest.raises(EmptyModelError):
        model.forget(np.flatnonzero(Y).tolist())
    with pytest.raises(Interrupted):
        model.forget([1], callback=interrupt)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_disk)
        with pytest.raises(CheckpointError, match="max_memory"):
            model.forget([1])
    assert encode(model) == before
    assert model.digest() == digest
    assert np.array_equal(model.predict_proba(X), said)
    twin = fitted()
    for each in (model, twin):
        each.forget([1])
    assert model.digest() == twin.digest()


def test_failed_fit_keeps_the_old_model() -> None:
    model = fitted()
    digest = model.digest()
    with pytest.raises(Interrupted):
        model.fit(X, Y, callback=interrupt)
    assert model.digest() == digest


def test_progress_is_told_after_every_epoch() -> None:
    told: list[Progress] = []
    model = make().fit(X, Y, callback=told.append)
    model.forget([3], callback=told.append)
    assert [each.epoch for each in told] == [*range(8), *range(8)]
    assert told[7].loss < told[0].loss


def test_a_callback_may_wait_for_a_net_that_another_thread_trains() -> None:
    waiting: list[bool] = []

    def wait(_: Progress) -> None:
        other = threading.Thread(target=fitted, kwargs={"epochs": 1})
        other.start()
        other.join(30)
        waiting.append(other.is_alive())

    model = make(epochs=2).fit(X, Y, callback=wait)
    model.forget([3], callback=wait)
    assert waiting == [False] * 4
    twin = fitted(epochs=2)
    twin.forget([3])
    assert model.digest() == twin.digest()


def test_saved_models_go_on(tmp_path: Path) -> None:
    model = fitted()
    model.forget([3])
    save(model, tmp_path / "model.letheon")
    copies = [load(tmp_path / "model.letheon"), pickle.loads(pickle.dumps(model)), copy.copy(model)]
    for each in copies:
        assert each.digest() == model.digest()
        assert each.guarantee_ == model.guarantee_
    model.forget([7, 8])
    for each in copies:
        assert each.n_rows_ == 39
        each.forget([7, 8])
        assert each.digest() == model.digest()


def test_path_in_a_file_is_the_same_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, make_file = [], tempfile.TemporaryFile

    def watched(*given: Any, **more: Any) -> Any:
        file = make_file(*given, **more)
        made.append(os.fstat(file.fileno()).st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    in_memory, in_file = fitted(), fitted(max_memory=1000)
    for each in (in_memory, in_file):
        each.forget([1])
        each.forget([30, 31])
    assert made == [0o600] * 3
    assert in_file.digest() == in_memory.digest()
    assert list(tmp_path.iterdir()) == []


def test_many_rows_leave_so_that_slots_move() -> None:
    """Rows move together when a fifth of them left; slots of the path stay those of the fit."""
    model = fitted(period=1)
    for own in range(0, 18, 2):
        model.forget([own, own + 1])
        twin = fitted(period=1)
        twin.forget(list(range(own + 2)))
        assert torch.equal(model.nets_.flat, twin.nets_.flat)
    assert model.rows_.n_slots < model.n_slots_ == 40


def test_half_of_the_rows_leave() -> None:
    model = fitted()
    receipt = model.forget(list(range(21)))
    fresh = make().fit(X[21:], Y[21:], ids=range(21, 40))
    assert receipt.rebuilt == {"retrains": 1}
    assert model.digest() == fresh.digest()


def test_last_of_a_class_leaves() -> None:
    labels = np.where(np.arange(40) == 6, "rare", np.array(["a", "b"])[Y % 2])
    model = make().fit(X, labels)
    model.forget([6])
    keep = np.arange(40) != 6
    assert model.classes_.tolist() == ["a", "b"]
    assert model.digest() == make().fit(X[keep], labels[keep], ids=np.flatnonzero(keep)).digest()


def test_replay_that_is_not_finite_is_answered_by_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = NetReplay.run

    def spoiled(self: NetReplay, *given: Any) -> Any:
        run(self, *given)
        self.end = self.end * torch.inf
        return self

    monkeypatch.setattr(NetReplay, "run", spoiled)
    model = fitted()
    receipt = model.forget([1])
    assert receipt.rebuilt == {"retrains": 1}
    assert np.isfinite(model.predict_proba(X)).all()


def test_images_of_bytes() -> None:
    images = rng.integers(0, 256, size=(30, 6, 6), dtype=np.uint8)
    images[::2, :3] //= 4
    model = make(module=CNN(channels=(2,), hidden=0)).fit(images, np.arange(30) % 2)
    receipt = model.forget([4, 5])
    assert model.rows_.X.dtype == np.uint8
    assert receipt.estimates.keys() == {"moved", "missed"}
    assert receipt.estimates["moved"] > 0


def test_people_with_many_rows() -> None:
    ids = np.array(["ann", "bob", "cy", "dan"])[np.arange(40) // 10]
    model = make().fit(X, Y, ids=ids)
    assert model.forget(["bob"]).n_rows == 10
    assert model.ids_.tolist() == ["ann", "cy", "dan"]
    assert int(model.path_.sizes.sum()) == 30 * 8


def test_work_counts_rows_and_products() -> None:
    exact, approximate = fitted(period=1, epochs=20), fitted(period=5, epochs=20)
    whole, part = exact.forget([0]), approximate.forget([0])
    assert whole.work == pytest.approx(1.0, abs=0.05)
    assert 0.1 < part.work < 0.8 * whole.work
    assert part.rebuilt["exact steps"] < whole.rebuilt["exact steps"]


def test_guarantee_is_empirical_and_defined() -> None:
    model = fitted()
    claim = model.forget([3]).guarantee
    assert claim.kind == "empirical"
    for code in claim.assumptions:
        assert f"`{code}`" in model.facts.definition
    for name in ("nets_", "path_", "n_slots_"):
        assert name in " ".join(claim.residual_state)
        assert name in vars(model)


def test_declared_residue_is_real() -> None:
    """Kept gradients of approximate steps are not those of the rows held; exact ones are."""
    leftovers = {}
    for period in (1, 5):
        model = fitted(period=period, batch_size=64, epochs=30)
        model.forget([3])
        context = model._current_context()
        plan = model._make_schedule(_slot_table(model.rows_, model.n_slots_), context)
        descent = NetDescent(context, plan, 0, None)
        rows = torch.from_numpy(np.flatnonzero(model.rows_.alive))
        weights = torch.full((len(rows),), 1 / len(rows))
        errors = [
            g - descent.loss_and_gradient(w, rows, weights)[1]
            for w, g in zip(model.path_.points, model.path_.gradients, strict=True)
        ]
        leftovers[period] = float(torch.stack(errors).abs().max())
    assert leftovers[1] < 1e-6
    assert leftovers[5] > 1e-5


def test_forgotten_row_and_label_can_be_computed_from_the_path(tmp_path: Path) -> None:
    """With file and rows, an attacker finds the row whose removal gives the same path."""
    settings: dict[str, Any] = {"module": MLP(widths=()), "batch_size": 64, "epochs": 16}
    model = fitted(**settings, learning_rate=0.3)
    model.forget([7])
    save(model, tmp_path / "model.letheon")
    loaded = load(tmp_path / "model.letheon")
    rows = loaded.rows_.X[loaded.rows_.alive]
    labels, left = loaded.rows_.y[loaded.rows_.alive], loaded.path_.gradients.double().numpy()

    def misses(guess: NDArray[Any], label: int) -> NDArray[Any]:
        simulated = clone(loaded).set_params(random_state=loaded.seed_)
        simulated.fit(np.insert(rows, 7, guess, axis=0), np.insert(labels, 7, label))
        simulated.forget([7])
        gap: NDArray[Any] = simulated.path_.gradients.double().numpy() - left
        return 1e4 * gap.ravel()

    searches = [
        least_squares(misses, rows.mean(axis=0), args=(label,), diff_step=1e-2, max_nfev=5)
        for label in range(3)
    ]
    best = min(range(3), key=lambda label: float(searches[label].cost))
    assert best == Y[7]
    assert np.linalg.norm(searches[best].x - X[7]) < 0.01 * np.linalg.norm(X[7])
    assert any(
        "forgotten rows and labels can be computed" in text for text in model.residual_state_
    )


def test_rows_that_leave_are_no_sample_of_the_new_net(monkeypatch: pytest.MonkeyPatch) -> None:
    model, make_nets, seen = fitted(), DeltaGradNetClassifier._make_nets, list[int]()

    def watched(self: Any, context: Any, flat: Tensor, samples: Any, classes: Any) -> Any:
        seen.extend(samples[0].tolist())
        return make_nets(self, context, flat, samples, classes)

    monkeypatch.setattr(DeltaGradNetClassifier, "_make_nets", watched)
    model.forget([3, 9])
    assert seen == [person for person in range(40) if person not in (3, 9)]


def test_printing_shows_no_path() -> None:
    model = fitted(epochs=1)
    assert repr(model.path_) == f"<path of 3 steps, {model.path_.points.shape[1]} parameters>"
    assert "path" not in repr(model)
