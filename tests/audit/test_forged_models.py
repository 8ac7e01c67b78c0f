"""Models that were spoilt before they were certified: everything is signed and logged at once."""

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from letheon import (
    SISAClassifier,
    state,
)
from letheon.audit import AuditReport, audit
from tests.audit.bundles import erase, rewrite
from tests.audit.honest import IDS, MODELS, HonestModel, N, new_ledger, place
from tests.audit.people import table


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestModel]:
    """A ledger with a model of every kind, each of which forgot the same person."""
    folder = tmp_path_factory.mktemp("many")
    with new_ledger(folder / "home", *MODELS) as ledger:
        for kind in MODELS:
            erase(ledger, kind, 3)
        bundle = ledger.export(folder / "bundle", tier="auditor")
        yield HonestModel(ledger, bundle, bundle, bundle, bundle)


@pytest.mark.parametrize("kind", MODELS)
def test_honest_models_of_every_kind_have_the_documented_verdict(
    kind: str, many: HonestModel
) -> None:
    report = audit(many.bundle, key=many.ledger.public_key, model=kind)
    assert report.verdict == ("incomplete" if kind == "deltagrad" else "passed")


def publish(
    many: HonestModel,
    folder: Path,
    kind: str,
    change: Callable[[Any, Any], Any],
    claim: Callable[[dict[str, Any]], Any] = lambda _: None,
) -> AuditReport:
    """Publish `change(before, after)` with other claims, sign everything anew, and audit it."""
    bundle = Path(shutil.copytree(many.bundle, folder / "bundle"))
    path = place(bundle, kind, "model.blob")
    data, (X, y) = path.read_bytes(), table(N)
    before, after = MODELS[kind]().fit(X, y, ids=IDS), state.decode(data[32:])
    model = change(before, after)
    path.write_bytes(data[:32] + state.encode(after if model is None else model))

    def lie(statement: dict[str, Any]) -> None:
        if statement["predicate"]["model"]["id"] == kind:
            claim(statement["predicate"])

    digests = [hashlib.sha256(one).hexdigest() for one in (data, path.read_bytes())]
    rewrite(many.ledger, bundle, lie, {digests[0]: digests[1]})
    report = audit(bundle, key=many.ledger.public_key, model=kind)
    assert {failure.level for failure in report.failures} <= {"V4", "V5"}
    return report


def test_a_history_that_was_signed_anew_passes_all_but_the_model(
    many: HonestModel, tmp_path: Path
) -> None:
    """The test of the tests: what fails below fails for the reason that it names."""
    for kind in ("logit", "forest", "newton"):
        report = publish(many, tmp_path / kind, kind, lambda before, after: None)
        assert (report.verdict, report.skipped) == ("passed", ())


def another_machine(claims: dict[str, Any]) -> None:
    claims["execution"]["lockfile"]["sha256"] = "11" * 32


def rename_libraries(model: Any, **names: str) -> None:
    """Let a model and its parts say that they were made with other libraries."""
    wanted = names or {"numpy": "2.3.5"}
    for part in [model, *(step for _, step in getattr(model, "steps_", ()))]:
        part.environment_ = {**part.environment_, **wanted}


def keep_old_coefficients(before: Any, after: Any) -> None:
    rename_libraries(after)
    if hasattr(after, "ensemble_"):
        shards = [
            dataclasses.replace(now, model=then.model)
            for now, then in zip(after.ensemble_.shards, before.ensemble_.shards, strict=True)
        ]
        after.ensemble_ = dataclasses.replace(after.ensemble_, shards=tuple(shards))
    elif hasattr(after, "steps_"):
        for (_, now), (_, then) in zip(after.steps_, before.steps_, strict=True):
            now.estimator_ = then.estimator_
    else:
        after.estimator_ = before.estimator_


@pytest.mark.parametrize("kind", ["logit", "sisa", "bayes", "scaled", "steps"])
def test_old_coefficients_with_another_numpy_fail(
    kind: str, many: HonestModel, tmp_path: Path
) -> None:
    report = publish(many, tmp_path, kind, keep_old_coefficients, another_machine)
    assert report.verdict == "failed"
    assert "more than the tolerance of its method" in report.failures[0].reason


def test_where_no_tolerance_is_known_other_libraries_are_incomplete(
    many: HonestModel, tmp_path: Path
) -> None:
    report = publish(many, tmp_path, "tree", keep_old_coefficients, another_machine)
    assert report.verdict == "incomplete"
    assert "no tolerance is known" in report.open_results[0].reason


def keep_old_forest(before: Any, _: Any) -> Any:
    return before


def keep_old_forest_elsewhere(before: Any, _: Any) -> Any:
    rename_libraries(before, letheon="letheon-v0")
    return before


def add_a_library(_: Any, after: Any) -> None:
    rename_libraries(after, numpy="2.3.5")


@pytest.mark.parametrize("change", [keep_old_forest, keep_old_forest_elsewhere, add_a_library])
def test_an_integer_method_has_no_excuse(change: Any, many: HonestModel, tmp_path: Path) -> None:
    report = publish(many, tmp_path, "forest", change, another_machine)
    assert report.verdict == "failed"


def rounding_on_other_libraries(_: Any, after: Any) -> None:
    rename_libraries(after)
    after.estimator_.coef_ *= 1 + 1e-14


def other_libraries_only(_: Any, after: Any) -> None:
    rename_libraries(after)


def test_rounding_on_other_libraries_is_incomplete(many: HonestModel, tmp_path: Path) -> None:
    report = publish(many, tmp_path, "logit", rounding_on_other_libraries, another_machine)
    assert report.verdict == "incomplete"
    assert "Repeat the audit with these libraries" in report.open_results[0].reason


def test_the_same_bytes_with_other_libraries_pass(many: HonestModel, tmp_path: Path) -> None:
    report = publish(many, tmp_path, "logit", other_libraries_only, another_machine)
    assert report.verdict == "passed"
    assert "numpy 2.3.5 (here" in report.of("V4")[0].reason


def garbage(_: Any, after: Any) -> None:
    after.environment_ = {"numpy": "the erased row is 0.25, -1.5"}


def garbage_in_a_version(_: Any, after: Any) -> None:
    rename_libraries(after, numpy="2.3.5 0.25 -1.5")


def hidden_in_a_step(_: Any, after: Any) -> None:
    rename_libraries(after)
    after.steps_[0][1].environment_ = {**after.steps_[0][1].environment_, "numpy": "1.5.25"}


def no_environment(_: Any, after: Any) -> None:
    del after.environment_


def free_kernels(before: Any, after: Any) -> None:
    rename_libraries(after, kernels="free")
    after.estimator_ = before.estimator_


def edited_parameters(_: Any, after: Any) -> None:
    after.parameters_ = "00" * 32


def large_seed(_: Any, after: Any) -> None:
    after.random_state = 7 << 200


def many_jobs(_: Any, after: Any) -> None:
    after.estimator.n_jobs = 7 << 200


def looser_solver(_: Any, after: Any) -> None:
    """The settings are certified, so a looser tolerance cannot be put in afterwards."""
    after.estimator.tol = after.estimator_.tol = 10.0


def another_class(_: Any, after: Any) -> Any:
    X, y = table(N)
    keep = np.setdiff1d(IDS, [3])
    return SISAClassifier(LogisticRegression(), n_shards=2, random_state=1).fit(
        X[keep], y[keep], ids=IDS[keep]
    )


def a_note(before: Any, after: Any) -> None:
    rename_libraries(after)
    after.estimator_.note_ = before.rows_.X[3]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("logit", garbage),
        ("logit", garbage_in_a_version),
        ("steps", hidden_in_a_step),
        ("logit", no_environment),
        ("logit", free_kernels),
        ("logit", edited_parameters),
        ("logit", large_seed),
        ("logit", looser_solver),
        ("logit", another_class),
        ("logit", a_note),
    ],
)
def test_a_spoilt_model_fails(kind: str, change: Any, many: HonestModel, tmp_path: Path) -> None:
    assert publish(many, tmp_path, kind, change, another_machine).verdict == "failed"


def test_a_setting_that_the_reader_refuses_is_no_pass(many: HonestModel, tmp_path: Path) -> None:
    """The auditor may trust the class; until then nothing was shown."""
    assert publish(many, tmp_path, "logit", many_jobs, another_machine).verdict == "incomplete"


def weaker_replay(claims: dict[str, Any]) -> None:
    another_machine(claims)
    claims["execution"] |= {"replay": "tolerance", "tolerance": "1"}


def called_empirical(claims: dict[str, Any]) -> None:
    claims["guarantee"]["kind"] = "empirical"
    claims["guarantee"]["accounting"]["rule"] = "none-empirical"


def called_certified(claims: dict[str, Any]) -> None:
    claims["guarantee"] |= {"kind": "certified", "epsilon": "1", "delta": "1e-6"}


def another_method(claims: dict[str, Any]) -> None:
    claims["method"]["name"] = "deltagrad"


@pytest.mark.parametrize(
    ("kind", "change", "claim"),
    [
        ("forest", keep_old_forest, weaker_replay),
        ("forest", keep_old_forest, called_empirical),
        ("logit", keep_old_coefficients, called_empirical),
        ("logit", keep_old_coefficients, called_certified),
        ("logit", keep_old_coefficients, another_method),
        ("newton", lambda before, after: None, called_empirical),
    ],
)
def test_a_certificate_that_claims_less_does_not_choose_the_level(
    kind: str, change: Any, claim: Any, many: HonestModel, tmp_path: Path
) -> None:
    assert publish(many, tmp_path, kind, change, claim).verdict == "failed"


def test_a_model_that_calls_itself_empirical_does_not_pass(
    many: HonestModel, tmp_path: Path
) -> None:
    def downgrade(_: Any, after: Any) -> None:
        after.downgraded_ = "by its operator"

    report = publish(many, tmp_path, "newton", downgrade, called_empirical)
    assert report.verdict != "passed"


def test_an_honest_empirical_model_is_incomplete(many: HonestModel, tmp_path: Path) -> None:
    report = publish(many, tmp_path, "deltagrad", lambda before, after: None)
    assert report.verdict == "incomplete"
