"""Transformers in stacked lanes: digests of a fresh fit, padding, tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from letheon import SISANetClassifier
from letheon.deep._module import Template
from letheon.exceptions import TrainingError
from tests.deep.sisa_people import fitted, joined, refitted
from tests.deep.transformers import NETS, PADDING, VOCABULARY, WIDTH
from tests.sharded.people import ShardPeople, make_people

IMAGES = {"vit", "attention"}
SETTINGS: dict[str, Any] = {"epochs": 2, "optimizer": "adamw", "batch_size": 6}


def people_for(net: str, n_people: int = 18) -> ShardPeople:
    people = make_people(n_people, seed=3)
    rng, n = np.random.default_rng(3), len(people.ids)
    if net == "vit":
        return people._replace(X=rng.integers(0, 256, (n, 2, 4, 4)).astype(np.uint8))
    if net == "attention":
        return people._replace(X=rng.normal(size=(n, 5, WIDTH)).astype(np.float32))
    tokens = rng.integers(1, VOCABULARY, (n, 6))
    lengths = rng.integers(1, 7, n)
    tokens[np.arange(6) >= lengths[:, None]] = PADDING
    return people._replace(X=tokens)


def settings_for(net: str) -> dict[str, Any]:
    kind = "float32" if net in IMAGES else "int64"
    return SETTINGS | {"module": NETS[net], "row_dtype": kind}


@pytest.mark.parametrize("lane_width", [1, 2, 3])
@pytest.mark.parametrize("net", NETS)
def test_requests_end_in_the_bytes_of_a_fresh_fit(net: str, lane_width: int) -> None:
    people = people_for(net)
    model = fitted(people, **settings_for(net), lane_width=lane_width)
    again = people.without(set(people.ids.tolist()) - {2})
    rest = people.without([2, 5])
    model.forget([2, 5])
    model.learn(again.X, again.y, ids=again.ids)
    rest = joined(rest, again)
    fresh = refitted(model, rest)
    assert fresh.digest() == model.digest()
    assert np.array_equal(fresh.predict_proba(people.X), model.predict_proba(people.X))


@pytest.mark.parametrize("net", [net for net in NETS if net in ("gpt", "padded")])
def test_stacked_networks_are_the_networks(net: str) -> None:
    """The stacked layout against the modules one by one, without dropout."""
    people = people_for(net)
    template = Template(quiet(net), (6,), 3, 5, dtype=torch.int64)
    flat = torch.stack([template.initial_flat(lane) for lane in range(3)])
    x = torch.from_numpy(people.X[:12]).view(3, 4, 6)
    stacked = template.compute_stacked_logits(flat, x)
    for line, rows, got in zip(flat, x, stacked, strict=True):
        assert torch.allclose(got, template.train_logits(line, rows), atol=1e-5)


def quiet(net: str) -> Any:
    """Return the factory without dropout."""

    def make(shape: Any, n_outputs: int) -> torch.nn.Module:
        module = NETS[net](shape, n_outputs)
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            if isinstance(part, torch.nn.MultiheadAttention):
                part.dropout = 0.0
        return module

    return make


def test_padding_has_no_influence() -> None:
    people = people_for("padded")
    model = fitted(people, **settings_for("padded"), lane_width=3)
    short = people.X.copy()
    short[:, 3:] = PADDING
    cut = model.to_modules()[0]
    assert torch.allclose(cut(torch.from_numpy(short)), unpadded(cut, short[:, :3]), atol=1e-5)


def unpadded(module: Any, tokens: Any) -> Tensor:
    """The output for rows without the padding at the end; positions as before."""
    positions = module.positions
    module.positions = torch.nn.Parameter(positions[: tokens.shape[1]])
    result: Tensor = module(torch.from_numpy(np.ascontiguousarray(tokens)))
    module.positions = positions
    return result


def test_tokens_are_whole_numbers() -> None:
    people = people_for("gpt")
    model = fitted(people, **settings_for("gpt"))
    assert model.rows_.X.dtype == np.int64
    with pytest.raises(ValueError, match="takes whole numbers"):
        model.predict(people.X.astype(float))
    with pytest.raises(TrainingError, match="float32"):  # an embedding needs whole numbers
        SISANetClassifier(module=NETS["gpt"], device="cpu").fit(people.X, people.y)
    for option in ({"augment": "mixup"}, {"augment": "flip"}, {"test_time_flip": True}):
        with pytest.raises(ValueError, match="row_dtype is 'int64'"):
            fitted(people, **settings_for("gpt"), **option)
