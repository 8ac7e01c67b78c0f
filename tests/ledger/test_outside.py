"""Models from outside in a ledger: what a process that was taken over can and cannot do."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import text

import letheon
from letheon import NaiveUnlearner, sandbox, state
from letheon.exceptions import MemoryLimitError
from letheon.ledger import Ledger, ModelFiles
from letheon.ledger.db.database import Database
from letheon.ledger.models import examine
from letheon.ledger.worker import compute
from letheon.ledger.worker.compute import Computation

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)


def files(folder: Path) -> ModelFiles:
    letheon.save(NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y), folder / "m.letheon")
    table = io.BytesIO()
    np.savez(table, X=X, y=Y)
    return ModelFiles(
        model=(folder / "m.letheon").read_bytes(), rows=("rows.npz", table.getvalue())
    )


def more_rows(answer: dict[str, Any]) -> None:
    answer["facts"]["rows"] = 7


def garbage(answer: dict[str, Any]) -> None:
    answer["model"] = b"garbage"


def other_settings(answer: dict[str, Any]) -> None:
    model = state.decode(answer["model"])
    model.estimator.var_smoothing = 0.5
    answer["model"] = state.encode(model)


def other_class(answer: dict[str, Any]) -> None:
    answer["model"] = state.encode(GaussianNB().fit(X, Y))


def nothing(answer: dict[str, Any]) -> None:
    answer.clear()


def no_time(answer: dict[str, Any]) -> None:
    answer["seconds"] = float("nan")


def endless_time(answer: dict[str, Any]) -> None:
    answer["seconds"] = 1e300


def strange_claim(answer: dict[str, Any]) -> None:
    model = state.decode(answer["model"])
    model.declare_tuning("x" * 10_000)
    answer["model"] = state.encode(model)


def forged(change: Any) -> Any:
    """Return a process whose answer was changed by the model that took it over."""

    def call(work: Any, argument: Computation, **_: Any) -> Any:
        answer = work(argument, lambda _: None)
        change(answer)
        return answer

    return call


@pytest.fixture(scope="module")
def two_tenants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a model from outside and one of another tenant, to be copied."""
    folder = tmp_path_factory.mktemp("tenants")
    with Ledger.create(folder / "home", name="test") as ledger:
        ledger.models.register_files(files(folder), name="outside", tenant="rival")
        own = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y)
        ledger.models.register(own, X, Y, name="own")
    return folder / "home"


@pytest.mark.parametrize(
    "change",
    [
        more_rows,
        garbage,
        other_settings,
        other_class,
        nothing,
        no_time,
        endless_time,
        strange_claim,
    ],
)
def test_a_forged_answer_holds_up_no_other_tenant(
    change: Any, two_tenants: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(Path(shutil.copytree(two_tenants, tmp_path / "home"))) as ledger:
        monkeypatch.setattr(sandbox, "call", forged(change))
        ledger.requests.submit([1], model="outside", tenant="rival", verified=True)
        wanted = ledger.requests.submit([1], model="own", verified=True).id
        ledger.run_once(force=True)
        ledger.run_once(force=True)
        assert ledger.requests.get(wanted).state == "purged"
        # What the process said about itself is not what is certified.
        (other,) = [request for request in ledger.requests.list() if request.tenant == "rival"]
        assert (other.state, other.reason) in {("stuck", "forged-answer"), ("purged", None)}


def test_a_computation_takes_no_longer_than_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Efficiency is certified from these seconds, and later limits of time follow from them."""

    def days(answer: dict[str, Any]) -> None:
        answer["seconds"] = 1e6

    products = []
    real = compute._build_result

    def keep(*given: Any) -> Any:
        products.append((real(*given), given[2]))
        return products[-1][0]

    with Ledger.create(tmp_path / "home", name="test") as ledger:
        ledger.models.register_files(files(tmp_path), name="outside")
        monkeypatch.setattr(compute, "_build_result", keep)
        monkeypatch.setattr(sandbox, "call", forged(days))
        ledger.requests.submit([1], model="outside", verified=True)
        ledger.run_once(force=True)
    ((product, elapsed),) = products
    assert 0 < product.seconds <= elapsed < 1e6


def test_what_no_signer_would_sign_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        ledger.models.register_files(files(tmp_path), name="outside")
        real = compute._recompute_facts

        def wrong_claim(*given: Any) -> dict[str, Any]:
            facts = real(*given)
            facts["measurements"]["efficiency"]["value"] = "not a number"
            return facts

        monkeypatch.setattr(compute, "_recompute_facts", wrong_claim)
        wanted = ledger.requests.submit([1], model="outside", verified=True).id
        ledger.run_once(force=True)
        request = ledger.requests.get(wanted)
        assert (request.state, request.reason) == ("stuck", "forged-answer")
        assert len(ledger.models.versions("outside")) == 1
        assert ledger.doctor()[0].level == "ok"


def test_a_model_from_outside_is_never_computed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        ledger.models.register_files(files(tmp_path), name="outside")

        def refuse(_: Computation, **__: bool) -> None:
            raise AssertionError("computed in the process that has the keys")

        monkeypatch.setattr(compute, "compute", refuse)
        wanted = ledger.requests.submit([1], model="outside", verified=True).id
        ledger.run_once(force=True)
        assert ledger.requests.get(wanted).state == "purged"


def test_rows_that_a_process_sends_have_a_limit() -> None:
    wide = np.array(["x"] * 1_600, dtype="<U50000")
    with pytest.raises(MemoryLimitError):
        examine._decode_rows(state.encode(wide))


def test_rows_that_a_process_sends_are_rows() -> None:
    with pytest.raises(letheon.exceptions.LedgerError, match="returned data other than rows"):
        examine._decode_rows(state.encode(GaussianNB()))


def test_models_of_an_older_ledger_count_as_outside(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        own = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y)
        ledger.models.register(own, X, Y, name="plain")
        ledger.models.register(own, X, Y, name="trusting", trusted=["mine.Model"])
    database = Database.open(tmp_path / "home" / "ledger.db")
    with database.transaction() as conn:
        conn.execute(text("ALTER TABLE models DROP COLUMN origin"))
        conn.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    database.dispose()
    Ledger.upgrade(tmp_path / "home")
    database = Database.open(tmp_path / "home" / "ledger.db")
    with database.reading() as conn:
        rows = conn.execute(text("SELECT name, origin FROM models"))
        origins = {str(name): str(origin) for name, origin in rows}
    database.dispose()
    assert origins == {"plain": "outside", "trusting": "own"}
