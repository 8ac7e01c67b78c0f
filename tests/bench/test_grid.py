"""Which cells there are, and what the variants make of them."""

import re

import pytest
from sklearn.base import clone

from letheon.bench import METHODS, BenchmarkCell, BenchmarkOptions, list_cells
from letheon.bench._grid import (
    VARIANTS,
    CellContext,
    find_variant,
    make_ordinary_model,
    parse_removed,
)

SEVEN = {
    "SISA", "DaRE", "Fisher", "Influence", "DeltaGrad", "Descent-to-Delete", "DeepObliviate",
}  # fmt: skip


def test_all_seven_methods_and_naive_retraining_are_there() -> None:
    assert set(METHODS) >= SEVEN | {"Naive"}


def test_every_method_but_naive_has_two_settings_or_more() -> None:
    settings = {(r.method, r.family): 0 for r in VARIANTS}
    for variant in VARIANTS:
        settings[variant.method, variant.family] += 1
    few = [key for key, count in settings.items() if count < 2 and key[0] in SEVEN]
    assert few == []


def test_full_grid_has_every_dataset_and_number_of_people() -> None:
    cells = list_cells(BenchmarkOptions())
    assert {cell.dataset for cell in cells} == set(BenchmarkOptions().datasets)
    assert {cell.removed for cell in cells} == {"1", "100", "1%", "10%"}
    assert {cell.method for cell in cells if cell.kind == "attack"} >= SEVEN


def test_names_of_files_are_unique_and_plain() -> None:
    names = [cell.name for cell in list_cells(BenchmarkOptions())]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in names)


def test_an_eighth_of_one_person_is_no_cell() -> None:
    cells = list_cells(BenchmarkOptions(methods=("Fisher",), attacks=False))
    eighths = {cell.removed for cell in cells if cell.setting == "m' = m/8"}
    assert eighths == {"100", "1%", "10%"}


def test_methods_and_families_are_chosen() -> None:
    options = BenchmarkOptions(methods=("SISA",), families=("net",), attacks=False)
    assert {(cell.method, cell.family) for cell in list_cells(options)} == {("SISA", "net")}


@pytest.mark.parametrize("text", ["0", "100%", "0%", "-1", "some", "1.5", ""])
def test_numbers_of_people_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of people"):
        parse_removed(text)


def test_rows_are_capped_by_family_and_kind() -> None:
    options = BenchmarkOptions(rows=900, net_rows=500, attack_rows=300)
    net = BenchmarkCell(dataset="x", method="SISA", family="net", setting="S R = B", removed="1")
    assert options.max_rows(net) == 500
    assert options.max_rows(BenchmarkCell(**{**vars(net), "family": "linear"})) == 900
    assert options.max_rows(BenchmarkCell(**{**vars(net), "kind": "attack"})) == 300


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda r: f"{r.method}-{r.family}-{r.setting}")
def test_every_variant_makes_an_unlearner_that_can_be_cloned(variant: object) -> None:
    assert hasattr(variant, "make")
    if variant.family == "net":  # type: ignore[attr-defined]
        pytest.importorskip("torch")
    place = CellContext(n_rows=200, n_columns=6, n_removed=80, random_depths=(1, 4))
    model = clone(variant.make(place))
    assert callable(model.forget)


def test_settings_reach_the_models() -> None:
    place = CellContext(n_rows=200, n_columns=6, n_removed=80, random_depths=(1, 4))
    assert find_variant("Influence", "linear", "m' = m/8").make(place).batch_size == 10
    assert find_variant("Fisher", "linear", "m' = m").make(place).batch_size == 80
    assert find_variant("DaRE", "forest", "least d_rmax").make(place).random_depth == 1
    assert find_variant("DaRE", "forest", "largest d_rmax").make(place).random_depth == 4
    sisa = find_variant("SISA", "linear", "S R = B").make(place)
    assert sisa.n_shards * sisa.n_slices == 20


def test_the_device_reaches_the_nets() -> None:
    pytest.importorskip("torch")
    place = CellContext(n_rows=200, n_columns=6, n_removed=1, device="cuda")
    nets = [r.make(place) for r in VARIANTS if r.family == "net"] + [
        make_ordinary_model("net", place)
    ]
    assert {net.device for net in nets} == {"cuda"}


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown variant"):
        find_variant("DaRE", "linear", "S R = B")
