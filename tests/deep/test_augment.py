"""Augmentation against plain loops, its independence of other rows, and options of the step."""

from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from letheon import SISANetClassifier
from letheon.data import SlotRows, as_ids
from letheon.deep import CNN, MLP, RowGenerator
from letheon.deep._augment import Augmentation, crop_images, cut_out, flip_images, make_augmentation
from letheon.deep._batches import to_signed
from letheon.deep._loop import Loop
from letheon.deep._optim import clip_gradients, learning_rates
from letheon.deep._slots import compute_row_keys
from letheon.exceptions import InvalidParameterError, TrainingError
from letheon.seeds import Purpose, keyed_hash
from tests.deep.sisa_people import fitted, joined, refitted
from tests.sharded.people import ShardPeople, examples, make_people

MASK = 2**64 - 1
SIZE = 6


def finalise(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mix(key: int, bits: int) -> int:
    return finalise((key & MASK) ^ finalise((bits + 0x9E3779B97F4A7C15) & MASK))


def draw(key: int, call: int, number: int = 0) -> int:
    """The bits of one number of a row, in plain Python."""
    return mix(mix(key, call), number)


def draw_integer(key: int, call: int, high: int, number: int = 0) -> int:
    return ((draw(key, call, number) >> 32) * high) >> 32


def make_images(people: ShardPeople) -> ShardPeople:
    rng = np.random.default_rng(len(people.ids))
    images = rng.integers(0, 256, (len(people.ids), 1, SIZE, SIZE)).astype(np.uint8)
    images[:, 0, 0, 0] = 80 * people.y  # something to learn
    return people._replace(X=images)


def random_images(n: int = 40) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.rand(n, 2, SIZE, SIZE, generator=rng), torch.arange(n) * 7919 - 11


def test_flip_against_a_plain_loop() -> None:
    x, keys = random_images()
    got = flip_images(x, RowGenerator(keys))
    flipped = [draw_integer(key, 0, 2) == 1 for key in keys.tolist()]
    expected = [row.flip(-1) if is_on else row for row, is_on in zip(x, flipped, strict=True)]
    assert torch.equal(got, torch.stack(expected))
    assert 5 < sum(flipped) < 35


def test_crop_against_a_plain_loop() -> None:
    x, keys = random_images()
    got = crop_images(x, RowGenerator(keys), margin=2)
    for row, key, result in zip(x, keys.tolist(), got, strict=True):
        dy, dx = (draw_integer(key, 0, 5, number) for number in range(2))
        padded = torch.zeros(2, SIZE + 4, SIZE + 4)
        padded[:, 2 : 2 + SIZE, 2 : 2 + SIZE] = row
        assert torch.equal(result, padded[:, dy : dy + SIZE, dx : dx + SIZE])


@pytest.mark.parametrize("side", [None, 2, 5])
def test_cutout_against_a_plain_loop(side: int | None) -> None:
    x, keys = random_images()
    got, width = cut_out(x, RowGenerator(keys), side=side), side or SIZE // 2
    for row, key, result in zip(x, keys.tolist(), got, strict=True):
        top, left = (draw_integer(key, call, SIZE) - width // 2 for call in range(2))
        expected = row.clone()
        expected[:, max(top, 0) : max(top + width, 0), max(left, 0) : max(left + width, 0)] = 0
        assert torch.equal(result, expected)


def test_mixup_against_a_plain_loop() -> None:
    x, keys = random_images(12)
    mixed, share = make_augmentation("mixup", x.shape[1:], x.dtype).mix_rows(x, keys, 3)
    for row, key in enumerate(keys.tolist()):
        s = (draw(mix(key, -1), 0) >> 40) / 2**24
        before = row - 1 if row % 4 else row + 3  # three batches of four rows
        assert share[row] == s
        assert torch.allclose(mixed[row], s * x[row] + (1 - s) * x[before])


def test_row_generator() -> None:
    keys = torch.arange(20_000)
    generator = RowGenerator(keys)
    uniform, whole, normal = generator.uniform(2), generator.integers(3), generator.normal()
    assert (uniform >= 0).all()
    assert (uniform < 1).all()
    assert abs(uniform.mean() - 0.5) < 0.01
    assert torch.allclose(whole.bincount() / len(keys), torch.tensor(1 / 3), atol=0.02)
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    columns = torch.cat([uniform, normal[:, None]], dim=1).T
    assert torch.corrcoef(columns).fill_diagonal_(0).abs().max() < 0.03
    again = RowGenerator(keys[5:8])
    assert torch.equal(again.uniform(2), uniform[5:8])


@pytest.mark.parametrize("texts", [False, True])
def test_keys_of_rows_against_a_plain_loop(texts: bool) -> None:
    owners: list[Any] = [3, 0, 3, 5, 3, 0]
    owners = [f"p{each}" for each in owners] if texts else owners
    rows = SlotRows(np.zeros((6, 1), np.float32), np.zeros(6), as_ids(owners))
    expected, seen = [], dict[Any, int]()
    for owner in owners:
        number = seen[owner] = seen.get(owner, -1) + 1
        expected.append(to_signed(mix(keyed_hash(9, Purpose.AUGMENT, owner), number)))
    assert compute_row_keys(rows, 9).tolist() == expected
    gone = rows.find(as_ids([owners[1]])).positions
    rows.alive[gone] = False  # the slots stay, as before the next compaction
    kept = compute_row_keys(rows, 9)
    assert kept[[0, 2, 3, 4]].tolist() == [expected[row] for row in (0, 2, 3, 4)]
    assert not kept[gone].any()


def seen_rows(monkeypatch: pytest.MonkeyPatch, act: Any) -> set[bytes]:
    """The bytes of all images that networks get in training while `act` runs."""
    seen = set[bytes]()
    augmented = Augmentation.change_rows

    def spy(self: Any, x: Tensor, keys: Tensor, width: int) -> Tensor:
        changed: Tensor = augmented(self, x, keys, width)
        seen.update(row.numpy().tobytes() for row in changed)
        return changed

    with monkeypatch.context() as patch:
        patch.setattr(Augmentation, "change_rows", spy)
        act()
    return seen


def test_a_removed_row_changes_the_augmentation_of_no_other_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people = make_images(make_people(12, seed=3))
    settings: dict[str, Any] = {
        "module": CNN(channels=(2,), hidden=2),
        "augment": ["flip", "crop2", "cutout"],
        "n_shards": 1,
    }
    model = fitted(people, **settings)
    everything = seen_rows(monkeypatch, lambda: fitted(people, **settings))
    after = seen_rows(monkeypatch, lambda: model.forget([3]))
    assert len(after) > 20
    assert after < everything


def shift(x: Tensor, generator: RowGenerator) -> Tensor:
    return x + generator.normal(*x.shape[1:])


def noise_of_torch(x: Tensor, _: RowGenerator) -> Tensor:
    return x + torch.randn_like(x)


def mix_with_the_batch(x: Tensor, _: RowGenerator) -> Tensor:
    return 0.9 * x + 0.1 * x.mean(dim=0)


def return_fewer_rows(x: Tensor, _: RowGenerator) -> Tensor:
    return x[1:]


def return_doubles(x: Tensor, _: RowGenerator) -> Tensor:
    return x.double()


def return_nothing(*_: Any) -> None:
    pass


NETS = (
    CNN(channels=(2,), hidden=2),
    MLP(widths=(3,), dropout=0.5, scale=1 / 255),
    MLP(widths=(3,), batch_norm=True, scale=1 / 255),
)
CHANGES: list[Any] = ["flip", "crop2", "cutout", "cutout2", "mixup", shift, noise_of_torch]


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[int]], bool]:
    """Settings with the options of the step, requests, and whether the first to leave come back."""
    is_smooth = draw(st.booleans())
    settings = {
        "module": draw(st.sampled_from(NETS)),
        "augment": draw(st.lists(st.sampled_from([*CHANGES, mix_with_the_batch]), max_size=3)),
        "n_shards": draw(st.integers(1, 3)),
        "n_slices": draw(st.integers(1, 2)),
        "lane_width": draw(st.sampled_from([None, 2, 3])),
        "optimizer": draw(st.sampled_from(["sgd", "adamw"])),
        "schedule": draw(st.sampled_from(["constant", "cosine"])),
        "warm_up": draw(st.sampled_from([0.0, 0.3])),
        "label_smoothing": 0.1 if is_smooth else 0.0,
        "max_grad_norm": draw(st.sampled_from([None, 0.5])),
        "accumulation_steps": draw(st.integers(1, 3)),
        "test_time_flip": draw(st.booleans()),
        "validation_fraction": draw(st.sampled_from([0.0, 0.3])),
        "n_iter_no_change": draw(st.integers(1, 2)),
        "batch_size": draw(st.integers(2, 4)),
        "random_state": draw(st.integers(0, 2**64 - 1)),
    }
    leaving = draw(st.permutations(range(12)))[: draw(st.integers(1, 5))]
    cut = draw(st.integers(0, len(leaving)))
    return settings, [part for part in (leaving[:cut], leaving[cut:]) if part], draw(st.booleans())


@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
@examples(100)
@given(stories(), st.integers(0, 50))
def test_requests_end_in_the_bytes_of_a_fresh_fit(
    story: tuple[dict[str, Any], list[list[int]], bool], seed: int
) -> None:
    settings, requests, come_back = story
    people = make_images(make_people(14, seed=seed))
    model = fitted(people, **settings)
    rest = people
    for request in requests:
        rest = rest.without(request)
        model.forget(request)
    if come_back:
        again = people.without(set(people.ids.tolist()) - set(requests[0]))
        model.learn(again.X, again.y, ids=again.ids)
        rest = joined(rest, again)
    fresh = refitted(model, rest)
    assert fresh.digest() == model.digest()
    assert np.array_equal(fresh.predict_proba(people.X), model.predict_proba(people.X))


def test_keys_by_position_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the augmentation of a row depends on the number of rows before it."""
    people = make_images(make_people(20, seed=4))
    monkeypatch.setattr(
        "letheon.deep._base.compute_row_keys", lambda rows, seed: np.arange(rows.n_slots) + seed % 7
    )
    model = fitted(people, module=NETS[0], augment="crop2", n_shards=1)
    model.forget([int(people.ids[0])])
    assert refitted(model, people.without([people.ids[0]])).digest() != model.digest()


def test_mixing_across_lanes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: "mixup" takes the row before it, even if it belongs to another network."""
    people = make_images(make_people(20, seed=4))
    settings: dict[str, Any] = {"module": NETS[0], "augment": "mixup", "lane_width": 3}
    monkeypatch.setattr("letheon.deep._augment.roll_rows", lambda x, _: x.roll(1, dims=0))
    model = fitted(people, **settings)
    model.forget([int(people.ids[0])])
    assert refitted(model, people.without([people.ids[0]])).digest() != model.digest()


def test_a_callable_gets_one_network_at_a_time() -> None:
    """Its other networks have no influence, although it combines the rows that it gets."""
    people = make_images(make_people(30, seed=5))
    settings: dict[str, Any] = {"module": NETS[1], "augment": mix_with_the_batch, "lane_width": 3}
    one = fitted(people, **settings)
    X = people.X.copy()
    X[one.rows_.extra["shard"] == 1] //= 2
    two = fitted(people._replace(X=X), **settings)
    assert torch.equal(one.nets_.flat[[0, 2]], two.nets_.flat[[0, 2]])
    assert not torch.equal(one.nets_.flat[1], two.nets_.flat[1])


@pytest.mark.parametrize(
    ("augment", "error"),
    [
        ("turn", InvalidParameterError),
        ("crop", InvalidParameterError),
        ("crop9", ValueError),
        ("cutout9", ValueError),
        (["flip", 3], InvalidParameterError),
        (return_fewer_rows, TrainingError),
        (return_doubles, TrainingError),
        (return_nothing, TrainingError),
    ],
)
def test_unsuitable_changes_are_refused(augment: Any, error: type[Exception]) -> None:
    people = make_images(make_people(9))
    with pytest.raises(error, match="augment"):
        fitted(people, module=NETS[0], augment=augment)


@pytest.mark.parametrize("option", [{"augment": "flip"}, {"test_time_flip": True}])
def test_a_table_has_no_mirror_image(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs images"):
        fitted(make_people(9), **option)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warm_up": 0.1, "schedule": "one-cycle"}, "begins with a warm-up"),
        (
            {"warm_up": 0.1, "optimizer": torch.optim.SGD},
            "needs an optimizer that is given by name",
        ),
        ({"label_smoothing": 0.1, "loss": nn.functional.nll_loss}, "loss='cross_entropy'"),
        ({"accumulation_steps": 0}, "accumulation_steps=0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
    ],
)
def test_options_that_contradict_each_other(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(make_people(9), **settings)


def test_test_time_flip_against_the_modules() -> None:
    people = make_images(make_people(12, seed=1))
    model = fitted(people, module=NETS[0], test_time_flip=True)
    x = torch.from_numpy(people.X.astype(np.float32))
    shares = [
        torch.softmax(net(rows).double(), 1)
        for net in model.to_modules()
        for rows in (x, x.flip(-1))
    ]
    assert np.allclose(model.predict_proba(people.X), torch.stack(shares).mean(0).numpy())


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_warm_up_against_the_formula(schedule: str, n: int) -> None:
    active = torch.ones(n, 2, dtype=torch.bool)
    active[: n // 2, 1] = False
    rates = learning_rates(active, schedule, 0.5, 0.3)
    for lane, n_steps in enumerate((n, n - n // 2)):
        first = int(0.3 * n_steps)
        for k, step in enumerate(active[:, lane].nonzero()[:, 0].tolist()):
            share = (k - first) / (n_steps - first)
            late = (1 + cos(pi * share)) / 2 if schedule == "cosine" else 1.0
            factor = (k + 1) / (first + 1) if k < first else late
            assert float(rates[step, lane]) == pytest.approx(0.5 * factor, rel=1e-5)


def test_clipping_against_torch() -> None:
    gradient = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * 3
    gradient[1] *= 1e-3
    clipped = clip_gradients(gradient, 1.5)
    for line, result in zip(gradient, clipped, strict=True):
        parameter = nn.Parameter(torch.zeros(9))
        parameter.grad = line.clone()
        torch.nn.utils.clip_grad_norm_([parameter], 1.5)
        assert torch.allclose(result, parameter.grad)


@pytest.mark.parametrize("lane_width", [1, 3])
def test_accumulated_steps_are_steps_of_large_batches(lane_width: int) -> None:
    people = make_people(30, seed=6)
    one = fitted(people, batch_size=4, accumulation_steps=3, lane_width=lane_width)
    two = fitted(people, batch_size=12, lane_width=lane_width)
    three = fitted(people, batch_size=4, lane_width=lane_width)
    assert torch.allclose(one.nets_.flat, two.nets_.flat, atol=1e-5)
    assert not torch.allclose(one.nets_.flat, three.nets_.flat, atol=1e-3)


def smoothed(logits: Tensor, codes: Tensor) -> Tensor:
    """The formula of label smoothing, by hand."""
    log_shares = torch.log_softmax(logits, 1)
    right = log_shares.gather(1, codes[:, None])[:, 0]
    return -(0.8 * right + 0.2 * log_shares.mean(dim=1))


def test_label_smoothing_against_the_formula() -> None:
    people = make_people(20, seed=7)
    one, two = fitted(people, label_smoothing=0.2), fitted(people, loss=smoothed)
    assert torch.allclose(one.nets_.flat, two.nets_.flat, atol=1e-5)
    assert not torch.allclose(one.nets_.flat, fitted(people).nets_.flat, atol=1e-3)


def test_options_at_their_defaults_are_not_in_the_digest() -> None:
    """A file of an earlier version does not have them."""
    people = make_people(12, seed=8)
    model = fitted(people)
    digest = model.digest()
    for name in SISANetClassifier._later_parameters:
        vars(model).pop(name)
    assert model.digest() == digest
    model.forget([0])
    assert refitted(model, people.without([0])).digest() == model.digest()
    assert fitted(people, warm_up=0.2).digest() != digest


def test_held_out_rows_are_chosen_by_person_and_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people = make_people(40, seed=9)
    trained = set[int]()
    original = Loop.train

    def spy(self: Loop, flat: Tensor, phase: Any, *args: Any) -> Tensor:
        trained.update(int(row) for slots in phase.slots if slots is not None for row in slots)
        return original(self, flat, phase, *args)

    monkeypatch.setattr(Loop, "train", spy)
    fitted(people, validation_fraction=0.3)
    limit = 0.3 * 2**64
    expected = {
        row
        for row, owner in enumerate(people.ids.tolist())
        if keyed_hash(7, Purpose.VALIDATION, owner) >= limit
    }
    assert trained == expected
    assert 0 < len(expected) < len(people.ids)


@pytest.mark.parametrize("lane_width", [1, 3])
def test_early_stopping_keeps_the_best_epoch(lane_width: int) -> None:
    """Against fits of 1, 2, ... epochs without a stop, and the rule in a plain loop."""
    people = make_people(40, seed=10)
    options: dict[str, Any] = {"validation_fraction": 0.4, "learning_rate": 0.1, "epochs": 12}
    options |= {"lane_width": lane_width, "optimizer": "sgd"}
    model = fitted(people, n_iter_no_change=2, **options)
    held_out = np.array(
        [keyed_hash(7, Purpose.VALIDATION, each) < 0.4 * 2**64 for each in people.ids.tolist()]
    )
    shards = model.rows_.extra["shard"]
    kept = []
    states = [fitted_without_stop(people, options, n) for n in range(1, 13)]
    for shard in range(3):
        rows = np.flatnonzero(held_out & (shards == shard))
        x, y = torch.from_numpy(people.X[rows].astype(np.float32)), torch.from_numpy(people.y[rows])
        losses = []
        for state in states:
            module = model._current_context().template.make_module(state[shard], {})
            losses.append(float(nn.functional.cross_entropy(module(x), y)))
        best = age = 0
        for epoch in range(1, len(losses)):
            best, age = (epoch, 0) if losses[epoch] < losses[best] else (best, age + 1)
            if age == 2:
                break
        kept.append(best)
        assert torch.equal(model.nets_.flat[shard], states[best][shard])
    assert min(kept) < 11


def fitted_without_stop(people: ShardPeople, options: dict[str, Any], n: int) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SISANetClassifier, "_make_stop", lambda *_: None)
        flat: Tensor = fitted(people, **(options | {"epochs": n})).nets_.flat
    return flat
