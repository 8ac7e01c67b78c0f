"""Pipelines on a mixed data frame in files, in the ledger and in audits, like any other model."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.impute import SimpleImputer as SkImputer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer

import letheon
from letheon import ForgetPipeline, ForgetSearchCV, NaiveUnlearner, state
from letheon.audit import audit
from letheon.audit._rederive import check_file_content, check_rederivation
from letheon.compose import DataIndependent
from letheon.data import as_ids
from letheon.ledger import Ledger
from letheon.ledger.certificates.facts import replay_of
from letheon.ledger.models.examine import copy_rows
from letheon.ledger.worker import compute
from letheon.persist import inspect
from letheon.preprocessing import KeyedSample, OneHotEncoder
from letheon.sums import RidgeClassifier
from letheon.table_pipeline import make_table_pipeline
from tests.audit.bundles import verdicts
from tests.pipelines.people import LEAVING, MODELS, PEOPLE, fit_pipeline, mixed_frame, target
from tests.pipelines.people import make_pipeline as unfitted

LEVELS = {"dare": "V4", "ridge": "V4", "influence": "V5"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger with a registered and a trained pipeline of each kind; three people were erased."""
    frame = mixed_frame()
    folder = tmp_path_factory.mktemp("pipelines") / "home"
    with Ledger.create(folder, name="pipelines") as opened:
        for kind in MODELS:
            rows = (frame, target(frame))
            opened.models.register(fit_pipeline(kind), *rows, ids=PEOPLE, name=kind)
            opened.models.train(unfitted(kind), *rows, ids=PEOPLE, name=f"{kind}-trained")
        for model in [*MODELS, *(f"{kind}-trained" for kind in MODELS)]:
            erase(opened, model)
        yield opened


def erase(ledger: Ledger, model: str) -> None:
    ledger.requests.submit(LEAVING, model=model, verified=True)
    steps = ledger.run_once(force=True, model=model)
    assert [step.what for step in steps] == ["applied", "certified", "purged"]


def test_the_whole_audit_passes(ledger: Ledger, tmp_path: Path) -> None:
    bundle = ledger.export(tmp_path / "bundle", tier="auditor")
    report = audit(bundle, key=ledger.public_key)
    assert [str(result) for result in report if result.verdict != "pass"] == []
    levels = {(result.model, result.level) for result in report}
    for kind, level in LEVELS.items():
        assert {(kind, level), (f"{kind}-trained", level)} <= levels


@pytest.mark.parametrize("kind", MODELS)
def test_the_served_model_has_forgotten_in_every_step(ledger: Ledger, kind: str) -> None:
    model = ledger.models.load(kind)
    assert model.n_rows_ == len(PEOPLE) - len(LEAVING)
    if kind != "boosting":  # it takes the categories themselves
        encoder = model["columns"].named_transformers_["category"]
        assert encoder.sums_.n_rows == model.n_rows_
        assert "Bern" not in encoder.categories_[0].tolist()
    assert b"Bern" not in state.encode(model)


# Boosting alone holds its rows itself.
@pytest.mark.parametrize("kind", sorted(MODELS.keys() - {"boosting"}))
def test_the_ledger_stores_the_frame_with_its_types(ledger: Ledger, kind: str) -> None:
    rows = ledger.models.load(kind).fitted_.rows._to_state()["X"]
    expected = mixed_frame().drop(index=[3, 17, 40]).reset_index(drop=True)
    assert rows.dtypes.astype(str).tolist() == expected.dtypes.astype(str).tolist()
    assert rows["income"].isna().tolist() == expected["income"].isna().tolist()
    assert rows["city"].isna().tolist() == expected["city"].isna().tolist()


@pytest.mark.parametrize("kind", MODELS)
def test_a_file_gives_the_same_model_that_still_forgets(kind: str, tmp_path: Path) -> None:
    model, frame = fit_pipeline(kind), mixed_frame()
    letheon.save(model, tmp_path / "model")
    loaded = letheon.load(tmp_path / "model")
    assert loaded.digest() == model.digest()
    assert np.array_equal(loaded.predict(frame), model.predict(frame))
    assert "ForgetPipeline" in str(inspect(tmp_path / "model"))
    for forgetting in (model, loaded):
        forgetting.forget(LEAVING)
    if kind != "influence":
        assert loaded.digest() == model.digest()


def test_polars_rows_are_derived_again_in_the_audit(tmp_path: Path) -> None:
    """A frame of another library, from the fit to a passed audit in the sandbox."""
    frame = mixed_frame()
    texts = [city if isinstance(city, str) else None for city in frame["city"]]
    other = pl.DataFrame(
        {
            "age": frame["age"].to_list(),
            "city": texts,
            "plan": pl.Series(frame["plan"].astype(str).to_list(), dtype=pl.Categorical),
            "income": pl.Series(frame["income"].to_list()).fill_nan(None),
        }
    )
    pipeline = make_table_pipeline(MODELS["ridge"](), other).set_params(
        columns__category__min_frequency=None
    )
    model = pipeline.fit(other, target(frame), ids=PEOPLE)
    with Ledger.create(tmp_path / "home", name="polars") as opened:
        opened.models.register(model, other, target(frame), ids=PEOPLE, name="m")
        erase(opened, "m")
        bundle = opened.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=opened.public_key)
    assert {result.verdict for result in report} == {"pass"}
    assert "V4" in verdicts(report)


def spoiled(patch: pytest.MonkeyPatch, spoil: Callable[[Any, Any], None]) -> None:
    """Let the ledger compute honestly, and then spoil the model before it is published."""
    honest = compute._erase_rows

    def erase_and_spoil(job: Any, work: Any, *rest: Any) -> None:
        before = copy.deepcopy(work.model)
        honest(job, work, *rest)
        spoil(work.model, before)

    patch.setattr(compute, "_erase_rows", erase_and_spoil)


def parts_of(model: Any) -> dict[str, Any]:
    transformers: dict[str, Any] = model["columns"].named_transformers_
    return transformers


def keep_the_counts(model: Any, before: Any) -> None:
    """The forest forgets, but the encoder still counts the people."""
    parts_of(model)["category"].sums_ = parts_of(before)["category"].sums_


def keep_the_categories(model: Any, before: Any) -> None:
    """Keep the column of the rare city in the published list, and the width that goes with it."""
    parts_of(model)["category"].published_ = parts_of(before)["category"].published_
    pairs = zip(model["columns"].parts_, before["columns"].parts_, strict=True)
    model["columns"].parts_ = tuple([replace(part, width=old.width) for part, old in pairs])


def keep_the_sums(model: Any, before: Any) -> None:
    """Keep the sums of the imputer, alone or in front of a scaler."""
    for step, old in zip(imputers(model), imputers(before), strict=True):
        step.sums_ = old.sums_


def imputers(model: Any) -> list[Any]:
    step = parts_of(model)["number"]
    return [part for _, part in step.steps_] if hasattr(step, "steps_") else [step]


def keep_the_rows(model: Any, before: Any) -> None:
    model.fitted_ = replace(model.fitted_, rows=before.fitted_.rows)


def note_the_people(model: Any, before: Any) -> None:
    """Write the ids into another attribute."""
    gone = sorted(set(before.ids_.tolist()) - set(model.ids_.tolist()))
    model["columns"].secret_ = gone


CHEATS = [keep_the_counts, keep_the_categories, keep_the_sums, keep_the_rows, note_the_people]


@pytest.mark.parametrize("spoil", CHEATS)
@pytest.mark.parametrize("kind", ["dare", "influence"])
def test_an_operator_who_did_not_forget_in_the_preprocessing_is_caught(
    kind: str, spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(monkeypatch, spoil)
    frame = mixed_frame()
    with Ledger.create(tmp_path / "home", name="cheat") as opened:
        opened.models.register(fit_pipeline(kind), frame, target(frame), ids=PEOPLE, name=kind)
        opened.requests.submit(LEAVING, model=kind, verified=True)
        opened.run_once(force=True, model=kind)
        bundle = opened.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=opened.public_key, levels=["V4", "V5"])
    assert verdicts(report) == {"V4": "fail", "V5": "fail"}
    assert all("fitted_." in result.reason for result in report)


def claim_other_libraries(model: Any) -> None:
    """Write another version of NumPy into every part."""
    parts = [model, *(step for _, step in model.steps_), *parts_of(model).values()]
    parts += [step for part in parts for step in imputers_in(part)]
    for part in parts:
        if "environment_" in vars(part):
            part.environment_ = {**part.environment_, "numpy": "1.0"}


def imputers_in(part: Any) -> list[Any]:
    return [step for _, step in part.steps_] if isinstance(part, ForgetPipeline) else []


@pytest.mark.parametrize("kind", ["influence", "naive"])
@pytest.mark.parametrize("spoil", [None, keep_the_counts, keep_the_sums])
def test_other_libraries_do_not_excuse_integers(kind: str, spoil: Any) -> None:
    """Sums are the same with every library, whatever the model behind them."""
    frame = mixed_frame()
    y = target(frame)
    model = unfitted("influence")
    if kind == "naive":
        model.set_params(model=NaiveUnlearner(LogisticRegression(), random_state=0))
    model.fit(frame, y, ids=PEOPLE)
    before = copy.deepcopy(model)
    model.forget(LEAVING)
    claim_other_libraries(model)
    if spoil is not None:
        spoil(model, before)
    rows = copy_rows(frame, y, PEOPLE)
    rows = rows.without(rows.find(as_ids(LEAVING)).positions)
    if kind == "influence":
        findings = check_file_content(model, rows)
        assert (findings.wrong is None) == (spoil is None), findings
    else:
        verdict = check_rederivation(model, rows)[0].verdict
        assert verdict == ("fail" if spoil else "pass")


@pytest.mark.parametrize("spoil", [None, "sums", "sample", "scores"])
def test_other_libraries_do_not_excuse_integers_in_a_search(spoil: str | None) -> None:
    """Only scores and the choice may depend on libraries; a claim of others excuses no sums."""
    frame = mixed_frame()
    y = target(frame)
    grid = {"model__alpha": [0.1, 10.0]}
    model: Any = ForgetSearchCV(unfitted("ridge"), grid, n_people=500, cv=2, random_state=0)
    model.fit(frame, y, ids=PEOPLE)
    before = copy.deepcopy(model)
    model.forget(LEAVING)
    claim_other_libraries(model.model_)
    model.environment_ = {**model.environment_, "numpy": "1.0"}
    if spoil == "sums":
        model.model_["model"].sums_ = before.model_["model"].sums_
    if spoil == "sample":
        model.search_ = replace(model.search_, n_sampled=before.search_.n_sampled)
    if spoil == "scores":
        model.search_ = replace(model.search_, scores=before.search_.scores)
    rows = copy_rows(frame, y, PEOPLE)
    rows = rows.without(rows.find(as_ids(LEAVING)).positions)
    verdict = check_rederivation(model, rows)[0].verdict
    assert verdict == {None: "pass", "scores": "skipped"}.get(spoil, "fail")


def test_the_certificate_says_how_closely_a_pipeline_is_reproduced() -> None:
    assert replay_of(fit_pipeline("dare")) == replay_of(fit_pipeline("ridge")) == "bitwise"
    frame = mixed_frame()
    sampled = unfitted("ridge").set_params(columns__number=KeyedSample(SkImputer(), random_state=0))
    assert replay_of(sampled.fit(frame, target(frame))) == "bitwise-same-kernel"


def test_a_stateless_step_follows_the_columns_of_its_input() -> None:
    """The rare city leaves, so the step behind the encoder has one column fewer."""
    frame = mixed_frame()[["city", "plan"]]
    y = target(mixed_frame())
    steps = [
        ("code", OneHotEncoder(sparse_output=False)),
        ("scale", Normalizer()),
        ("fixed", DataIndependent(Normalizer("l1"))),
        ("model", RidgeClassifier(random_state=0)),
    ]
    model = ForgetPipeline(steps).fit(frame, y, ids=PEOPLE)
    model.forget(LEAVING)
    kept = [number for number, person in enumerate(PEOPLE) if person not in LEAVING]
    fresh = ForgetPipeline(steps).fit(frame.iloc[kept], y[kept], ids=np.array(PEOPLE)[kept])
    assert model.digest() == fresh.digest()
    assert np.array_equal(model.predict(frame.iloc[kept]), fresh.predict(frame.iloc[kept]))
