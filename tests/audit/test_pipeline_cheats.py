"""A part of a pipeline that did not forget fails the audit, whatever libraries the file names."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler

from letheon import ForgetPipeline, ForgetSearchCV, InfluenceClassifier, audit, state
from letheon.audit._rederive import check_file_content, check_rederivation
from letheon.data import Rows, hold_table, hold_target, row_ids
from letheon.exceptions import CorruptFileError
from letheon.ledger import Ledger
from letheon.preprocessing import (
    CountVectorizer,
    ForgetColumnTransformer,
    KeyedSample,
    OneHotEncoder,
    QuantileBinner,
    StandardScaler,
)
from letheon.sums import RidgeClassifier
from letheon.verifier import Trust, open_envelope

N, GONE = 80, 3
RNG = np.random.default_rng(0)
IDS = np.arange(N)
WORDS = ["red", "green", "blue"]
X = pd.DataFrame(
    {
        "n": RNG.normal(size=N),
        "c": RNG.choice(["x", "y"], N).astype(object),
        "t": [" ".join(RNG.choice(WORDS, 3)) for _ in range(N)],
    }
)
X.loc[GONE] = [1e6, "secret", "secret red"]
Y = np.arange(N) % 2
STAY = IDS != GONE


def make_pipeline(last: Any) -> ForgetPipeline:
    parts = [
        ("scale", StandardScaler(random_state=1), ["n"]),
        ("bin", QuantileBinner(n_bins=3, random_state=1), ["n"]),
        ("sample", KeyedSample(MinMaxScaler(), random_state=1), ["n"]),
        ("code", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["c"]),
        ("text", CountVectorizer(), "t"),
    ]
    columns = ForgetColumnTransformer(parts, sparse_threshold=0)
    return ForgetPipeline([("columns", columns), ("model", last)])


def make_search(last: Any, **grid: Any) -> ForgetSearchCV:
    return ForgetSearchCV(make_pipeline(last), grid, cv=2, random_state=1)


KINDS: dict[str, Callable[[], Any]] = {
    "exact": lambda: make_pipeline(RidgeClassifier(random_state=1)),
    "certified": lambda: make_pipeline(InfluenceClassifier(l2=0.05)),
    "search": lambda: make_search(RidgeClassifier(random_state=1), model__alpha=[1.0, 50.0]),
    "certified search": lambda: make_search(InfluenceClassifier(), model__l2=[0.05, 0.5]),
}


def judge(model: Any) -> str:
    """Return the verdict on a file."""
    table = X[STAY].reset_index(drop=True)
    rows = Rows(hold_table(table), hold_target(Y[STAY]), row_ids(IDS[STAY], N - 1))
    content = state.encode(model)
    try:
        model = state.decode(content)
    except CorruptFileError:
        return "fail"
    if model.guarantee_.kind == "exact":
        return check_rederivation(model, rows, content=content)[0].verdict
    findings = check_file_content(model, rows, content=content)
    return "fail" if findings.wrong else "skipped" if findings.undecided else "pass"


def iter_parts(model: Any) -> Iterator[Any]:
    """Yield a model and its fitted parts, in order."""
    yield model
    inner = [model.model_] if isinstance(model, ForgetSearchCV) else []
    inner += [step for _, step in getattr(model, "steps_", ())]
    inner += [part.step for part in getattr(model, "parts_", ())]
    for part in inner:
        yield from iter_parts(part)


def name_other_libraries(model: Any) -> Any:
    for part in iter_parts(model):
        if "environment_" in vars(part):
            part.environment_ = {**part.environment_, "numpy": "9.9.9"}
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_old_state_in_any_part_fails(kind: str) -> None:
    model = KINDS[kind]().fit(X, Y, ids=IDS)
    before = copy.deepcopy(model)
    model.forget([GONE])
    assert judge(model) == "pass"
    content, kept = state.encode(model), set()
    last = list(iter_parts(model))[-1]
    for number, (part, old) in enumerate(zip(iter_parts(model), iter_parts(before), strict=True)):
        names = vars(old).keys() & {"sums_", "published_", "search_"}
        for name in names if kind in ("exact", "search") or part is not last else ():
            cheat = copy.deepcopy(model)
            cheated = list(iter_parts(cheat))[number]
            setattr(cheated, name, copy.deepcopy(vars(old)[name]))
            if state.encode(cheat) == content:
                continue
            kept.add((type(part).__name__, name))
            assert judge(cheat) == "fail", (part, name)
            assert judge(name_other_libraries(cheat)) == "fail", (part, name)
    steps = {"StandardScaler", "QuantileBinner", "KeyedSample", "OneHotEncoder", "CountVectorizer"}
    assert {step for step, _ in kept} >= steps
    if "search" in kind:
        assert ("ForgetSearchCV", "search_") in kept


@pytest.mark.parametrize("kind", ["search", "certified search"])
def test_another_choice_or_sample_fails(kind: str) -> None:
    model = KINDS[kind]().fit(X[STAY], Y[STAY], ids=IDS[STAY])
    for change in ({"best": 1 - model.search_.best}, {"n_sampled": 5}):
        cheat = copy.deepcopy(model)
        cheat.search_ = type(model.search_)(**{**vars(model.search_), **change})
        assert judge(cheat) == "fail"
    cheat = copy.deepcopy(model)
    cheat.n_people = 30  # chosen afterwards
    assert judge(cheat) == "fail"


def test_a_certified_search_is_audited_as_its_model(tmp_path: Path) -> None:
    """The noise of the best model was taken for a hidden value, and was missing in certificates."""
    model = KINDS["certified search"]().fit(X, Y, ids=IDS)
    with Ledger.create(tmp_path / "ledger", name="test") as ledger:
        ledger.models.register(model, X, Y, ids=IDS, name="m")
        ledger.requests.submit([GONE], model="m", verified=True)
        ledger.run_once(force=True)
        trust = Trust.from_pinned(ledger.public_key)
        facts = open_envelope(ledger.certificates.envelope(1), trust).predicate
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
    assert "noise-drawn-anew" in facts["notClaimed"]
    assert audit.audit(bundle, key=key).verdict == "passed"
