"""Adapters of a frozen network: exact, low-rank by hand, frozen, saved in the layout of peft."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

import letheon
from letheon import SISANetRegressor, state
from letheon.deep import MLP, Backbone, LoRA, save_adapters
from letheon.deep._adapters import LoraLinear, _FrozenNorm
from letheon.deep._module import Template
from letheon.exceptions import CorruptFileError, InvalidParameterError, TrainingError
from tests.deep.sisa_people import TINY, fitted, joined, refitted
from tests.deep.transformers import GPT, VOCABULARY, ViT
from tests.sharded.people import ShardPeople, examples, make_people

BACKBONES: dict[str, Backbone] = {}


def make_backbone(kind: str) -> Backbone:
    """Return a backbone; its weights are the same in every call."""
    if kind not in BACKBONES:
        torch.manual_seed(3)
        factories: dict[str, Any] = {
            "mlp": (MLP(widths=(6, 5), dropout=0.3), ((3,), 4)),
            "normed": (MLP(widths=(6,), batch_norm=True), ((3,), 4)),
            "vit": (ViT, ((2, 4, 4), 4)),
            "gpt": (GPT, ((6,), 4)),
        }
        factory, arguments = factories[kind]
        module = factory(*arguments)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part(torch.randn(50, 6) * 3 + 1)  # running statistics that are not the first ones
        BACKBONES[kind] = Backbone(factory, module.state_dict(), arguments)
    return BACKBONES[kind]


def make_lora(kind: str = "mlp", **settings: Any) -> LoRA:
    return LoRA(backbone=make_backbone(kind), **({"rank": 2} | settings))


def people_for(kind: str, n_people: int = 14, seed: int = 3) -> ShardPeople:
    people = make_people(n_people, seed=seed)
    rng, n = np.random.default_rng(seed), len(people.ids)
    if kind == "vit":
        return people._replace(X=rng.integers(0, 256, (n, 2, 4, 4)).astype(np.uint8))
    if kind == "gpt":
        return people._replace(X=rng.integers(0, VOCABULARY, (n, 6)))
    return people


@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
@examples(30)
@given(
    st.sampled_from(["mlp", "normed", "vit", "gpt"]),
    st.sampled_from([None, 2, 3]),
    st.sampled_from(["sgd", "adamw"]),
    st.permutations(range(12)),
    st.integers(1, 4),
)
def test_requests_end_in_the_bytes_of_a_fresh_fit(
    kind: str, lane_width: int | None, optimizer: str, order: list[int], n_gone: int
) -> None:
    people, gone = people_for(kind), order[:n_gone]
    settings: dict[str, Any] = {"lane_width": lane_width, "optimizer": optimizer, "n_slices": 2}
    settings["row_dtype"] = "int64" if kind == "gpt" else "float32"
    model = fitted(people, module=make_lora(kind), **settings)
    for person in gone:
        model.forget([person])
    again = people.without(set(people.ids.tolist()) - {gone[0]})
    model.learn(again.X, again.y, ids=again.ids)
    fresh = refitted(model, joined(people.without(gone), again))
    assert fresh.digest() == model.digest()
    assert np.array_equal(fresh.predict_proba(people.X), model.predict_proba(people.X))
    assert "backbone-never-saw-the-rows" in model.guarantee_.assumptions


def test_the_backbone_does_not_change() -> None:
    people = people_for("mlp")
    before = {name: value.copy() for name, value in make_backbone("mlp").weights.items()}
    model = fitted(people, module=make_lora())
    trained = set(model._current_context().template.names)
    assert all("lora_" in name or "classifier" in name for name in trained)
    for module in model.to_modules():
        for path, part in module.get_submodule("base").named_modules():
            if isinstance(part, LoraLinear):
                weight = part.get_buffer("base_weight").numpy()
                assert np.array_equal(weight, before[f"{path}.weight"])
                assert part.lora_B.any()  # it was trained


def test_a_backbone_that_is_trained_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the parameters stay parameters."""
    monkeypatch.setattr("letheon.deep._adapters._freeze_parameters", lambda _: None)
    template = Template(make_lora(target_modules=("output",)), (3,), 3, 0)
    assert not all("lora_" in name or "classifier" in name for name in template.names)


def by_hand(folder: Path, x: Tensor, config: dict[str, Any]) -> Tensor:
    """The logits of one shard from its files and the weights of the backbone."""
    adapter = load_file(folder / "adapter_model.safetensors")
    weights = {name: torch.tensor(value) for name, value in make_backbone("mlp").weights.items()}
    scaling = config["lora_alpha"] / config["r"]
    for layer in ("hidden1", "hidden2", "output"):
        weight = weights[f"{layer}.weight"]
        if layer in config["target_modules"]:
            low, high = (adapter[f"base_model.model.{layer}.lora_{c}.weight"] for c in "AB")
            weight = weight + scaling * high @ low
        x = x @ weight.T + weights[f"{layer}.bias"]
        x = torch.relu(x) if layer != "output" else x
    head = [adapter[f"base_model.model.classifier.{name}"] for name in ("weight", "bias")]
    return x @ head[0].T + head[1]


@pytest.mark.parametrize("targets", ["all-linear", ("hidden1",), ("hidden2", "output")])
def test_files_against_a_model_by_hand(targets: Any, tmp_path: Path) -> None:
    people = people_for("mlp")
    model = fitted(people, module=make_lora(target_modules=targets, alpha=5.0))
    folders = save_adapters(model, tmp_path)
    assert [folder.name for folder in folders] == ["shard-0", "shard-1", "shard-2"]
    x, shares = torch.from_numpy(people.X.astype(np.float32)), []
    for folder in folders:
        config = json.loads((folder / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 5.0, "LORA")
        shares.append(by_hand(folder, x, config).softmax(dim=1).numpy())
    assert np.allclose(model.predict_proba(people.X), np.mean(shares, axis=0), atol=1e-5)


def test_new_adapters_do_nothing() -> None:
    """B begins with zeros, so the first outputs are those of the backbone."""
    module = make_lora()((3,), 2)
    x = torch.randn(5, 3)
    assert torch.equal(module.base(x), make_backbone("mlp").make_module()(x))  # type: ignore[operator]


def test_frozen_batch_norm_is_batch_norm_in_evaluation() -> None:
    backbone = make_backbone("normed")
    module = make_lora("normed")((3,), 2).train()
    x = torch.randn(7, 3)
    parts = [part for part in module.modules() if isinstance(part, _FrozenNorm)]
    assert len(parts) == 1
    assert torch.allclose(module.base(x), backbone.make_module()(x), atol=1e-5)  # type: ignore[operator]


def test_attention_uses_its_adapter() -> None:
    """`nn.MultiheadAttention` does not call its output layer; it uses its weight."""
    module = make_lora("vit", target_modules=("out_proj",))((2, 4, 4), 3)
    x = torch.rand(4, 2, 4, 4)
    before = module(x)
    with torch.no_grad():
        for name, part in module.named_parameters():
            if name.endswith("lora_B"):
                part.normal_()
    assert not torch.allclose(module(x), before, atol=1e-3)


@pytest.mark.parametrize("kind", ["mlp", "vit", "gpt"])
def test_stacked_adapters_are_the_adapters(kind: str) -> None:
    people = people_for(kind)
    dtype = torch.int64 if kind == "gpt" else torch.float32
    template = Template(make_lora(kind), people.X.shape[1:], 3, 5, dtype=dtype)
    flat = torch.stack([template.initial_flat(lane) for lane in range(3)])
    flat += 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    for part in template._stacked.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    x = torch.from_numpy(people.X[:12]).to(dtype)
    stacked = template.compute_stacked_logits(flat, x.view(3, 4, *x.shape[1:]))
    for line, rows, got in zip(flat, x.view(3, 4, *x.shape[1:]), stacked, strict=True):
        assert torch.allclose(got, template.make_module(line, {})(rows), atol=1e-4)


def test_regression_and_files(tmp_path: Path) -> None:
    people = people_for("mlp")
    model = SISANetRegressor(**(TINY | {"module": make_lora()}))
    model.fit(people.X, people.X[:, 0], ids=people.ids).forget([1])
    letheon.save(model, tmp_path / "net.letheon")
    loaded = letheon.load(tmp_path / "net.letheon")
    assert loaded.digest() == model.digest()
    for each in (model, loaded):
        each.forget([2])
    assert loaded.digest() == model.digest()


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 0), ("alpha", float("nan")), ("target_modules", "x"), ("backbone", None)],
)
def test_a_file_with_an_invalid_setting_is_refused(name: str, value: Any) -> None:
    lora = make_lora()
    state.decode(state.encode(lora))
    object.__setattr__(lora, name, value)
    with pytest.raises(CorruptFileError, match=name):
        state.decode(state.encode(lora))


def test_errors(tmp_path: Path) -> None:
    backbone = make_backbone("mlp")
    wrong: list[dict[str, Any]] = [
        {"backbone": MLP()},
        {"backbone": backbone, "rank": 0},
        {"backbone": backbone, "alpha": 0.0},
        {"backbone": backbone, "target_modules": ["hidden1"]},
        {"backbone": backbone, "target_modules": "hidden1"},
    ]
    for settings in wrong:
        with pytest.raises(InvalidParameterError):
            LoRA(**settings)
    with pytest.raises(TrainingError, match="names 'hidden9', but the linear layers"):
        make_lora(target_modules=("hidden9",))((3,), 2)
    with pytest.raises(TrainingError, match="the backbone fails on rows of shape"):
        make_lora()((4,), 2)
    with pytest.raises(TypeError, match=r"arguments=\(\); MLP, CNN and ResNet take"):
        Backbone(MLP())
    with pytest.raises(TypeError, match="no adapters"):
        save_adapters(fitted(people_for("mlp")), tmp_path)
