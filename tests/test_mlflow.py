"""Versions in MLflow, on a real tracking server with a SQLite database."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import letheon
from letheon import BoostingClassifier, InfluenceClassifier
from letheon.exceptions import GuaranteeWarning, LedgerMissingError, UnknownModelError
from letheon.ledger import Ledger, Policy
from letheon.verifier import VerificationError
from tests.ledger.homes import IDS, X, Y, fitted, make, person
from tests.pipelines import people

has_server = find_spec("mlflow") is not None and find_spec("flask") is not None
pytestmark = pytest.mark.skipif(
    not has_server, reason="needs MLflow's server: pip install 'mlflow>=3'"
)

# MLflow reports its use to its makers unless told not to; tests reach no other machine.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
LIGHT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
START_SECONDS = 180
PAGE = Path(__file__).parents[1] / "docs" / "mlflow.md"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a tracking server, started once."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    where = ["--host", "127.0.0.1", "--port", port, "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    stores += ["--artifacts-destination", str(folder / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *where, *stores]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | LIGHT,
            start_new_session=True,
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its group is its own; nothing is kept
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    import letheon.mlflow  # the client's imports take as long as the server's: at the same time

    assert letheon.mlflow.HEAD
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"MLflow's server did not start: {log.read_text(encoding='utf-8')[-2000:]}")


@pytest.fixture
def client(server: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(server)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with make(tmp_path, policy=Policy(pin_seconds=1, k_min=1)) as made:
        yield made


def forget(ledger: Ledger, *numbers: int, model: str = "risk", tenant: str = "default") -> None:
    ids = [person(number) for number in numbers]
    ledger.requests.submit(ids, model=model, tenant=tenant, verified=True)
    ledger.run_once(force=True)


def files_of(client: Any, run_id: str) -> set[str]:
    return {Path(item.path).name for item in client.list_artifacts(run_id, "letheon")}


def test_the_story_of_a_model_in_mlflow(ledger: Ledger, client: Any) -> None:
    from letheon.mlflow import HEAD, follow, log_version, verify_logged

    forget(ledger, 1)
    first = log_version(ledger, "risk", registered_model="story", client=client)
    assert (first.version, first.certificate, first.is_new) == (1, 1, True)
    target = f"{first.registered_model} version {first.registered_version}, run {first.run_id}"
    assert str(first) == f"risk@1 (certificate 1) -> {target}"

    run = client.get_run(first.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["letheon.efficiency"] > 0
    assert run.data.metrics["letheon.rows_erased"] == 2
    assert run.data.tags["letheon.efficiency.basis"] == "proxy-estimate"
    assert run.data.tags["letheon.guarantee"] == "exact"
    assert run.data.tags["letheon.address"] == ledger.models.versions("risk")[1].address
    expected = {"certificate.json", "proof.json", "purge.json", "public_key.txt"}
    assert files_of(client, first.run_id) == expected

    claims = verify_logged(first.run_id, ledger.public_key, client=client)
    assert claims["predicate"]["ledger"]["sequence"] == 1
    assert client.get_model_version_by_alias("story", HEAD).version == first.registered_version

    again = log_version(ledger, "risk", registered_model="story", client=client)
    assert (again.is_new, again.run_id) == (False, first.run_id)

    forget(ledger, 2)
    ledger.keys.rotate()
    forget(ledger, 3)
    second = log_version(ledger, "risk", registered_model="story", client=client)
    assert client.get_model_version_by_alias("story", HEAD).version == second.registered_version
    older = client.get_model_version("story", first.registered_version)
    assert older.tags["letheon.superseded"] == "3"
    assert verify_logged(second.run_id, ledger.public_key, client=client)["subject"]

    logged = follow(ledger, client=client)
    assert [item.version for item in logged] == [0, 1, 2, 3]
    assert follow(ledger, client=client) == ()
    heads = client.get_model_version_by_alias("risk", HEAD)
    assert heads.tags["letheon.version"] == "3"


def test_the_example_of_the_page_verifies_what_it_logs(
    tmp_path: Path, server: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import letheon.mlflow

    verified = []

    def verify(run_id: str, *given: Any, **more: Any) -> Any:
        verified.append(verify_logged(run_id, *given, **more)["predicate"]["ledger"]["sequence"])

    verify_logged = letheon.mlflow.verify_logged
    monkeypatch.setattr(letheon.mlflow, "verify_logged", verify)
    page: dict[str, Any] = {}
    exec(PAGE.read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0], page)
    home = str(tmp_path / "home")
    with Ledger.create(home, name="page", policy=Policy(pin_seconds=1, k_min=1)) as ledger:
        ledger.models.register(fitted(), X, Y, ids=IDS, name="page")
    page["after_each_batch"](home, server)  # the registration alone
    with Ledger.open(home) as ledger:
        forget(ledger, 1, model="page")
    page["after_each_batch"](home, server)
    assert verified == [1]
    logged = client.search_model_versions("name='page'")
    runs = {each.tags["letheon.version"]: each.run_id for each in logged}
    assert sorted(runs) == ["0", "1"]
    with pytest.raises(VerificationError, match="only versions that a removal made have one"):
        verify_logged(runs["0"], ledger.public_key, client=client)


def test_what_was_changed_in_mlflow_is_noticed(ledger: Ledger, client: Any) -> None:
    from letheon.mlflow import log_version, verify_logged

    forget(ledger, 1)
    run = log_version(ledger, "risk", registered_model="changed", client=client).run_id
    key = ledger.public_key
    with pytest.raises(VerificationError):
        verify_logged(run, "00" * 32, client=client)

    client.set_tag(run, "letheon.guarantee", "certified")
    with pytest.raises(VerificationError, match=r"tags letheon\.guarantee"):
        verify_logged(run, key, client=client)
    client.set_tag(run, "letheon.guarantee", "exact")

    client.log_metric(run, "letheon.consistency", 0.5)
    with pytest.raises(VerificationError, match=r"metrics letheon\.consistency"):
        verify_logged(run, key, client=client)
    client.log_metric(run, "letheon.consistency", 0.0)
    assert verify_logged(run, key, client=client)

    for name, data in (
        ("proof.json", ledger.certificates.envelope(1)),
        ("purge.json", ledger.certificates.envelope(1)),
        ("certificate.json", ledger.certificates.purge_attestation(1)),
    ):
        good = {
            "proof.json": ledger.certificates.proof,
            "purge.json": ledger.certificates.purge_attestation,
        }
        client.log_text(run, data.decode(), f"letheon/{name}")
        with pytest.raises(VerificationError):
            verify_logged(run, key, client=client)
        client.log_text(
            run, good.get(name, ledger.certificates.envelope)(1).decode(), f"letheon/{name}"
        )
    assert verify_logged(run, key, client=client)


def test_interrupted_calls_purges_and_models(
    ledger: Ledger, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from letheon.mlflow import log_version, verify_logged

    forget(ledger, 1)
    given = {"registered_model": "interrupted", "client": client}
    with monkeypatch.context() as early_on:
        early_on.setattr(ledger.certificates, "purge_attestation", _no_purge)
        with monkeypatch.context() as cut_off:
            cut_off.setattr(type(client), "create_model_version", _cut)
            with pytest.raises(OSError, match="cut"):
                log_version(ledger, "risk", **given)
        early = log_version(ledger, "risk", **given)
    assert early.is_new
    assert "purge.json" not in files_of(client, early.run_id)
    assert verify_logged(early.run_id, ledger.public_key, client=client)

    with pytest.warns(GuaranteeWarning, match="not destroyed by a purge of the ledger"):
        later = log_version(ledger, "risk", with_model=True, **given)
    assert (later.run_id, later.is_new) == (early.run_id, False)
    assert {"purge.json", "model.letheon"} <= files_of(client, early.run_id)
    assert len(client.search_model_versions("name='interrupted'")) == 1

    forget(ledger, 2)
    log_version(ledger, "risk", **given)
    assert "model.letheon" not in files_of(client, early.run_id)
    with pytest.raises(ValueError, match="needs the served version"):
        log_version(ledger, "risk", version=1, with_model=True, **given)
    with pytest.raises(LedgerMissingError, match="no version 9"):
        log_version(ledger, "risk", version=9, **given)
    with pytest.raises(UnknownModelError):
        log_version(ledger, "none", **given)
    with pytest.raises(ValueError, match="single quote"):
        log_version(ledger, "risk", registered_model="it's", client=client)


def test_a_certified_model_of_a_tenant(ledger: Ledger, client: Any) -> None:
    from letheon.mlflow import log_version, verify_logged

    scaled = X / 10
    model = InfluenceClassifier(l2=0.05, random_state=0).fit(scaled, Y, ids=IDS)
    ledger.models.register(model, scaled, Y, ids=IDS, name="certified", tenant="acme")
    forget(ledger, 1, model="certified", tenant="acme")
    logged = log_version(ledger, "certified", tenant="acme", client=client)
    assert logged.registered_model == "acme.certified"
    run = client.get_run(logged.run_id)
    tags = verify_logged(logged.run_id, ledger.public_key, client=client)["predicate"]["guarantee"]
    assert run.data.tags["letheon.epsilon"] == tags["epsilon"]
    assert run.data.metrics["letheon.budget"] == float(tags["accounting"]["budget"])
    assert "letheon.spent" not in run.data.metrics
    assert "letheon.efficiency" not in run.data.metrics
    assert run.data.tags["letheon.consistency.basis"] == "not-measured"
    assert "letheon.consistency" not in run.data.metrics


def boosted() -> Any:
    frame = people.mixed_frame()
    model = BoostingClassifier(n_estimators=6, n_chains=2, random_state=0)
    return model.fit(frame, people.target(frame), ids=people.PEOPLE)


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("forest-pipeline", lambda: people.fit_pipeline("dare")),
        ("boosting-pipeline", lambda: people.fit_pipeline("boosting")),
        ("boosting", boosted),
    ],
)
def test_a_model_on_a_mixed_frame(
    name: str, fit: Callable[[], Any], ledger: Ledger, client: Any, tmp_path: Path
) -> None:
    from letheon.mlflow import log_version, verify_logged

    frame = people.mixed_frame()
    rows = (frame, people.target(frame))
    ledger.models.register(fit(), *rows, ids=people.PEOPLE, name=name)
    ledger.requests.submit(people.LEAVING, model=name, verified=True)
    ledger.run_once(force=True)
    with pytest.warns(GuaranteeWarning, match="personal data"):
        logged = log_version(ledger, name, client=client, with_model=True)
    assert verify_logged(logged.run_id, ledger.public_key, client=client)["subject"]
    folder = Path(client.download_artifacts(logged.run_id, "letheon", str(tmp_path)))
    served = letheon.load(folder / "model.letheon")
    assert served.digest() == ledger.models.load(name).digest()


def _cut(*given: Any, **more: Any) -> None:
    raise OSError("the line was cut")


def _no_purge(sequence: int) -> bytes:
    raise LedgerMissingError("not yet")
