from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.measures.attacks import RMIA, rmia, tune_offline


def slow_rmia(
    target: Any, references: Any, z: Any, z_references: Any, a: float, gamma: float
) -> Any:
    """The definition, word by word."""
    scores = []
    for k in range(len(target)):
        out = [reference[k] for reference in references if not np.isnan(reference[k])]
        x_ratio = target[k] / ((1 + a) / 2 * np.mean(out) + (1 - a) / 2)
        beaten = 0
        for j in range(len(z)):
            mean = np.mean([reference[j] for reference in z_references])
            z_ratio = z[j] / ((1 + a) / 2 * mean + (1 - a) / 2)
            beaten += x_ratio / z_ratio > gamma
        scores.append(beaten / len(z))
    return scores


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1.0, 2.0]))
def test_scores_are_those_of_a_plain_loop(seed: int, a: float, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    x, z = rng.uniform(0.01, 1, size=5), rng.uniform(0.01, 1, size=7)
    x_out, z_out = rng.uniform(0.01, 1, size=(3, 5)), rng.uniform(0.01, 1, size=(3, 7))
    x_out[1, :2] = np.nan
    scores = rmia(x, x_out, z, z_out, a=a, gamma=gamma)
    np.testing.assert_allclose(scores, slow_rmia(x, x_out, z, z_out, a, gamma))


@given(st.integers(0, 10**6))
def test_breaking_ties_never_turns_two_scores_round(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_p = rng.uniform(size=8), rng.uniform(size=(2, 8)), rng.uniform(size=4)
    population = rng.uniform(size=(2, 4))
    plain = rmia(*given_p, population)
    fine = rmia(*given_p, population, break_ties=True)
    above = plain[:, None] > plain[None, :]
    assert (fine[:, None] > fine[None, :])[above].all()
    assert len(np.unique(fine)) == len(fine)


def test_a_row_that_the_model_thinks_impossible_scores_nothing() -> None:
    assert rmia([0.0], [[0.0]], [0.0, 0.5], [[0.0, 0.5]]).tolist() == [0.0]


def test_an_example_that_all_references_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not trained on it"):
        rmia([0.5], [[np.nan]], [0.5], [[0.5]])


def _references(rng: Any, lift: float, n: int = 200) -> tuple[Any, Any, Any]:
    """Four references; training raises the probability by the share `lift` of what is left."""
    members = np.zeros((4, n), bool)
    members[::2] = rng.random((2, n)) < 0.5
    members[1::2] = ~members[::2]
    base = rng.uniform(0.05, 0.95, size=n)
    p = base + members * lift * (1 - base) + rng.normal(0, 0.02, size=(4, n))
    z = np.tile(rng.uniform(0.05, 0.95, size=n), (4, 1)) + rng.normal(0, 0.02, size=(4, n))
    return np.clip(p, 0.001, 1), members, np.clip(z, 0.001, 1)


def test_tuning_takes_the_best_on_the_first_reference() -> None:
    p, members, z = _references(np.random.default_rng(0), lift=0.3)
    chosen = tune_offline(p, members, z)
    others = np.where(members[1:], np.nan, p[1:])

    def power(a: float) -> float:
        scores = rmia(p[0], others, z[0], z[1:], a=a)
        inside, outside = scores[members[0]], scores[~members[0]]
        wins = (inside[:, None] > outside).mean() + (inside[:, None] == outside).mean() / 2
        return float(wins)

    assert power(chosen) == pytest.approx(max(power(k / 10) for k in range(11)))


def test_two_references_leave_nothing_to_tune_on() -> None:
    p, members, z = _references(np.random.default_rng(0), lift=0.3)
    assert tune_offline(p[:2], members[:2], z[:2]) == 0.3


def _audited(kept: float, *, leaked: bool = False) -> Any:
    """An audit of a model that still knows the forgotten rows, as far as `kept`."""
    rng = np.random.default_rng(5)
    forgotten, unseen = rng.uniform(0.1, 0.5, size=60), rng.uniform(0.1, 0.5, size=400)
    references: tuple[NDArray[Any], NDArray[Any]] = (
        np.clip(forgotten + rng.normal(0, 0.02, size=(4, 60)), 0, 1),
        np.clip(unseen + rng.normal(0, 0.02, size=(4, 400)), 0, 1),
    )
    noise = rng.normal(0, 0.02, size=460)
    after = forgotten + kept * (1 - forgotten) + noise[:60]
    strangers = unseen + noise[60:]
    if leaked:
        strangers[::2] += 0.8 * (1 - strangers[::2])
    return RMIA().audit(after, strangers, *references)


def test_audit_finds_what_was_kept() -> None:
    audit = _audited(0.8)
    assert audit.found
    assert audit.measures["AUC"].value >= 0.9


def test_audit_of_a_retrain_stays_at_the_floor() -> None:
    audit = _audited(0.0)
    assert not audit.found
    assert abs(audit.measures["AUC"].value - 0.5) < 0.1


def test_planted_bug_a_population_that_was_trained_on_blinds_the_attack() -> None:
    clean, leaked = (_audited(0.8, leaked=each).scores for each in (False, True))
    assert clean[:60].mean() > 0.9
    assert leaked[:60].mean() < 0.7


def test_audit_takes_people_not_rows() -> None:
    rng = np.random.default_rng(0)
    p, z = rng.uniform(size=30), rng.uniform(size=40)
    references = rng.uniform(size=(2, 30)), rng.uniform(size=(2, 40))
    audit = RMIA().audit(p, z, *references, owners=np.repeat(["a", "b", "c"], 10))
    assert audit.labels is not None
    assert audit.labels.sum() == 3


def test_audit_needs_references_and_strangers() -> None:
    with pytest.raises(ValueError, match="at least 2 references"):
        RMIA().audit([0.5], [0.5] * 9, [[0.5]], [[0.5] * 9])


@pytest.mark.parametrize("settings", [{"n_references": 3}, {"n_targets": 0}])
def test_settings_without_an_experiment_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be even"):
        RMIA(**settings)  # type: ignore[arg-type]
