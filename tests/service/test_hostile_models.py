"""Uploads that want the server's files, time or memory: each costs its sender an error."""

import io
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures

import letheon
from letheon import NaiveUnlearner, SISAClassifier
from letheon.ledger import Ledger, ModelFiles
from letheon.ledger.db.tokens import Tokens
from letheon.sandbox import TimeLimitError
from letheon.service import ServiceSettings
from tests.service.desks import QUICK, Desk, make_desk
from tests.service.servers import serving

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
ENDLESS = 10**8


def rows() -> bytes:
    table = io.StringIO()
    np.savetxt(table, np.column_stack([X, Y]), delimiter=",", header="a,b,c,label", comments="")
    return table.getvalue().encode()


def saved(model: Any, folder: Path) -> bytes:
    letheon.save(model, folder / "m.letheon")
    return (folder / "m.letheon").read_bytes()


def altered(estimator: Any, folder: Path, **settings: Any) -> bytes:
    """Return a model whose settings were changed after its fit: the file says it was fitted so."""
    model = NaiveUnlearner(estimator, random_state=0).fit(X, Y)
    model.estimator.set_params(**settings)
    vars(model)["parameters_"] = model._digest_parameters()
    return saved(model, folder)


def send(client: Any, model: bytes, table: bytes | None = None, **fields: str) -> Any:
    files = {"model": ("m.letheon", model), "rows": ("r.csv", rows() if table is None else table)}
    wanted = {"name": "mine", "target": "label", **fields}
    return client.post("/api/v1/models", data=wanted, files=files)


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "endless fit": lambda folder: altered(
        SGDClassifier(max_iter=5, tol=None), folder, max_iter=ENDLESS
    ),
    "endless forest": lambda folder: altered(
        RandomForestClassifier(n_estimators=2), folder, n_estimators=ENDLESS
    ),
    "many columns": lambda folder: altered(
        make_pipeline(PolynomialFeatures(2), GaussianNB()), folder, polynomialfeatures__degree=2000
    ),
    "many processes": lambda folder: altered(KNeighborsClassifier(), folder, n_jobs=10**6),
    "keeps states on the disk": lambda folder: saved(
        SISAClassifier(
            SGDClassifier(), n_shards=2, n_slices=2, checkpoint_dir=folder / "s", random_state=0
        ).fit(X, Y),
        folder,
    ),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = ServiceSettings(**(vars(QUICK) | {"model_seconds": 2}))
    desk = make_desk(tmp_path_factory.mktemp("guarded"), settings=settings)
    yield desk
    desk.close()


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_hostile_model_is_an_error_of_its_sender(
    guarded: Desk, tmp_path: Path, kind: str
) -> None:
    before = guarded.client().get("/api/v1/models").json()
    answer = send(guarded.client("operator@default"), HOSTILE[kind](tmp_path))
    assert answer.status_code == 422, answer.text
    assert str(tmp_path) not in answer.text
    assert guarded.client().get("/api/v1/models").json() == before


def test_a_pattern_that_never_ends_is_refused_before_it_is_used(
    guarded: Desk, tmp_path: Path
) -> None:
    pd = pytest.importorskip("pandas")
    text = pd.DataFrame({"text": ["ab bc", "de ef"] * 20})
    words = make_pipeline(FunctionTransformer(np.ravel), CountVectorizer(), LogisticRegression())
    model = NaiveUnlearner(words, random_state=0).fit(text.to_numpy(), Y)
    model.estimator.set_params(countvectorizer__token_pattern="b|(?:a|aa)+c")
    vars(model)["parameters_"] = model._digest_parameters()
    table = ("text,label\n" + "\n".join(f"{'a' * 60},{y}" for y in Y)).encode()
    answer = send(guarded.client("operator@default"), saved(model, tmp_path), table)
    assert answer.status_code == 422
    assert "a setting that this desk does not trust" in answer.json()["detail"]


@pytest.mark.parametrize(
    "table", [b"", b"\xff\xfe\x00", b"label\n" + b"1\n" * 50, b'"' * 10_000, b"a,b,c,label\n1,2\n"]
)
def test_a_hostile_table_is_an_error_of_its_sender(
    guarded: Desk, tmp_path: Path, table: bytes
) -> None:
    model = saved(NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y), tmp_path)
    answer = send(guarded.client("operator@default"), model, table)
    assert answer.status_code in {409, 422}, answer.text


def test_a_model_that_turns_endless_is_stuck_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains at once on all rows; without one of them it would never end."""
    monkeypatch.setattr("letheon.ledger.worker.compute._LEAST_SECONDS", 1.0)
    monkeypatch.setattr("letheon.ledger.worker.compute._TIMES", 0.0)
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        slow = NaiveUnlearner(SGDClassifier(max_iter=10**4, tol=None), random_state=0).fit(X, Y)
        table = ("rows.npz", packed())
        files = ModelFiles(model=saved(slow, tmp_path), rows=table)
        ledger.models.register_files(files, name="slow", seconds=600)
        quick = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y)
        ledger.models.register(quick, X, Y, name="quick")
        monkeypatch.setattr("letheon.ledger.worker.compute._LEAST_SECONDS", 0.001)
        wanted = [
            ledger.requests.submit([1], model=name, verified=True).id for name in ("slow", "quick")
        ]
        ledger.run_once(force=True)
        stuck, done = map(ledger.requests.get, wanted)
    assert (stuck.state, stuck.reason) == ("stuck", "time-limit")
    assert done.state == "purged"


def packed() -> bytes:
    table = io.BytesIO()
    np.savez(table, X=X, y=Y)
    return table.getvalue()


def test_registering_endless_files_is_ended(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        model = altered(SGDClassifier(max_iter=5, tol=None), tmp_path, max_iter=ENDLESS)
        files = ModelFiles(model=model, rows=("rows.npz", packed()))
        with pytest.raises(TimeLimitError):
            ledger.models.register_files(files, name="endless", seconds=1)
        assert ledger.models.list() == ()


def test_a_signal_stops_the_server_beside_an_endless_upload(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Ledger.create(home, name="test") as ledger:
        token, _ = Tokens(ledger, lambda: int(time.time())).create("uploader", "operator")
    model = altered(SGDClassifier(max_iter=5, tol=None), tmp_path, max_iter=ENDLESS)
    with serving(home) as server:
        headers = {"Authorization": f"Bearer {token}"}

        def attack() -> None:
            with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
                try:
                    send(client, model)
                except httpx2.HTTPError:
                    return

        thread = threading.Thread(target=attack)
        thread.start()
        time.sleep(2)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        seconds = time.monotonic() - start
        thread.join()
    # Twice what is promised: the machine may be busy.
    assert seconds < 20
