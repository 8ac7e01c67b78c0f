"""Versions of a ledger's models in MLflow: certificates, proofs and measures beside the model.

Each version becomes a run and a version of a registered model. The alias ``letheon-head`` stands
at the version that is served, older ones are tagged ``letheon.superseded``, and `verify_logged`
checks what lies there with a public key alone. MLflow gets nothing that the public part of
a bundle does not hold, unless ``with_model=True`` asks for the model itself.

It needs ``letheon[mlflow,ledger]``.
"""

import hashlib
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, RunStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from letheon.exceptions import GuaranteeWarning, LedgerMissingError
from letheon.ledger import Ledger, Version
from letheon.verifier import (
    UNLEARNING,
    SignedStatement,
    Trust,
    check_purge,
    open_envelope,
    require,
    transition_roots,
)

__all__ = ["HEAD", "LoggedVersion", "follow", "log_version", "verify_logged"]

HEAD = "letheon-head"
_FOLDER = "letheon"
_MODEL = "model.letheon"
_CERTIFICATE, _PROOF, _PURGE = "certificate.json", "proof.json", "purge.json"
_KEY, _STATEMENTS = "public_key.txt", "key_statements"
_NOT_MEASURED = "not-measured"
_DONE = "letheon.logged"
_PURGED = "letheon.purged"
_HOLDS_MODEL = "letheon.holds_model"
_SUPERSEDED = "letheon.superseded"


@dataclass(frozen=True)
class LoggedVersion:
    """A version of a model as MLflow has it.

    Attributes
    ----------
    model, tenant : str
        The model in the ledger.
    version : int
        Number of the version there.
    certificate : int or None
        Number of its certificate; None for the registration.
    registered_model, registered_version : str
        Where it is in MLflow's registry.
    run_id : str
        The run that holds measures and files.
    is_new : bool
        Whether this call has logged it.
    """

    model: str
    tenant: str
    version: int
    certificate: int | None
    registered_model: str
    registered_version: str
    run_id: str
    is_new: bool


def log_version(
    ledger: Ledger,
    model: str,
    *,
    tenant: str = "default",
    registered_model: str | None = None,
    version: int | None = None,
    client: MlflowClient | None = None,
    with_model: bool = False,
) -> LoggedVersion:
    """Log a version with its certificate, proof, purge attestation and measures.

    Calling it again logs nothing twice; a call that was interrupted is completed, and a purge that
    was attested in the meantime is added.

    Parameters
    ----------
    ledger : Ledger
        Where the model is.
    model, tenant : str
        Which model.
    registered_model : str, optional
        Its name in MLflow's registry; by default the model's, after the tenant's and a dot unless
        that is "default".
    version : int, optional
        Which version; by default the one that is served.
    client : MlflowClient, optional
        By default one for the tracking server that MLflow is set to.
    with_model : bool, default=False
        Whether the model's file goes to MLflow, too. Only the version that is served can, and it
        is removed from its run when a later version is logged. It may hold rows of people, and no
        purge of the ledger reaches it.

    Warns
    -----
    GuaranteeWarning
        With `with_model`: what is certified about copies does not cover this one.

    Raises
    ------
    UnknownModelError, LedgerMissingError
        There is no such model or version, or its certificate is still to come.
    """
    head = ledger.models.get(model, tenant=tenant).head
    number = head.number if version is None else version
    found = ledger.models.versions(model, tenant=tenant, after=number - 1, limit=1)
    if not found or found[0].number != number:
        raise LedgerMissingError(f"model {model!r} has no version {number}")
    if with_model and number != head.number:
        raise ValueError(f"version {number} is not the one that is served; its file was destroyed")
    shelf = _Shelf(ledger, client or MlflowClient(), model, tenant, registered_model)
    known = shelf.logged()
    logged = _log(shelf, found[0], known, with_model=with_model)
    _move_head(shelf, head.number, known)
    return logged


def follow(
    ledger: Ledger, *, tenant: str | None = None, client: MlflowClient | None = None
) -> tuple[LoggedVersion, ...]:
    """Log every version of every model that is not logged yet; return what was new.

    To be called after each batch, or now and then: it goes on where the last call stopped.

    Parameters
    ----------
    ledger : Ledger
        Whose models.
    tenant : str, optional
        Models of one tenant only.
    client : MlflowClient, optional
        As for `log_version`.
    """
    client = client or MlflowClient()
    new: list[LoggedVersion] = []
    for info in ledger.models.list(tenant=tenant):
        shelf = _Shelf(ledger, client, info.name, info.tenant, None)
        known = shelf.logged()
        wanted = [
            version
            for version in ledger.models.versions(info.name, tenant=info.tenant)
            if not _is_complete(known.get(version.number)) and _is_certified(ledger, version)
        ]
        new += [_log(shelf, version, known) for version in wanted]
        if wanted:
            _move_head(shelf, info.head.number, known)
    return tuple(one for one in new if one.is_new)


def verify_logged(run_id: str, key: str, *, client: MlflowClient | None = None) -> dict[str, Any]:
    """Return what a logged certificate claims, after everything that lies beside it was checked.

    Signature and schema of the certificate, that its proof shows the transition, that the purge
    attestation belongs to it, and that the run's tags and metrics say what it says. That the
    certificate has its place in the chain and the log, the ledger's bundle shows.

    Parameters
    ----------
    run_id : str
        The run.
    key : str
        First public key of the ledger in hexadecimal digits, from a source other than MLflow.
    client : MlflowClient, optional
        As for `log_version`.

    Raises
    ------
    letheon.verifier.VerificationError
        Something does not hold; the text says what.
    """
    client = client or MlflowClient()
    run = client.get_run(run_id)
    with tempfile.TemporaryDirectory(prefix="letheon-mlflow-") as place:
        folder = Path(client.download_artifacts(run_id, _FOLDER, place))
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    require(_CERTIFICATE in files, "the run holds no certificate")
    statements = [files[name] for name in sorted(files) if name.startswith(f"{_STATEMENTS}/")]
    trust = Trust.from_pinned(key, statements)
    opened = open_envelope(files[_CERTIFICATE], trust)
    kind = opened.statement["predicateType"]
    require(kind == UNLEARNING, "what is named certificate is another statement")
    _require_proof(opened, files.get(_PROOF))
    if _PURGE in files or run.data.tags.get(_PURGED) == "true":
        check_purge(files.get(_PURGE, b""), opened, trust)
    said = _tags_of(opened)
    wrong = [name for name, value in said.items() if run.data.tags.get(name) != value]
    require(not wrong, f"the tags {', '.join(wrong)} are not what the certificate says")
    figures = _metrics_of(opened)
    wrong = [name for name, value in figures.items() if run.data.metrics.get(name) != value]
    require(not wrong, f"the metrics {', '.join(wrong)} are not what the certificate says")
    return opened.statement


class _Shelf:
    """Where the versions of one model go in MLflow."""

    def __init__(
        self,
        ledger: Ledger,
        client: MlflowClient,
        model: str,
        tenant: str,
        registered_model: str | None,
    ) -> None:
        self.ledger, self.client, self.model, self.tenant = ledger, client, model, tenant
        usual = model if tenant == "default" else f"{tenant}.{model}"
        # MLflow takes no colon in a name.
        self.name = registered_model or usual.replace(":", "-")
        if "'" in self.name:
            raise ValueError(f"registered_model={self.name!r} must not hold a quotation mark")

    def logged(self) -> dict[int, ModelVersion]:
        """Return the versions that MLflow has, by their number in the ledger."""
        found = self.client.search_model_versions(f"name='{self.name}'")
        return {
            int(one.tags["letheon.version"]): one
            for one in found
            if one.tags.get("letheon.ledger") == self.ledger.name
            and one.tags.get("letheon.model") == self.model
            and one.tags.get("letheon.tenant") == self.tenant
        }

    def experiment(self) -> str:
        """Return the id of the experiment of this model; made if it is not there."""
        name = f"letheon/{self.name}"
        found = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if found is None else found.experiment_id)

    def register(self) -> None:
        """Make the registered model if it is not there."""
        try:
            self.client.get_registered_model(self.name)
        except MlflowException:
            self.client.create_registered_model(self.name)

    def run(self, number: int, tags: Mapping[str, str]) -> str:
        """Return the run of a version: one that an interrupted call left, or a new one."""
        experiment = self.experiment()
        terms = [
            f"tags.`{name}` = '{tags[name]}'" for name in ("letheon.ledger", "letheon.address")
        ]
        for run in self.client.search_runs([experiment], " and ".join(terms)):
            return str(run.info.run_id)
        made = self.client.create_run(
            experiment, run_name=f"{self.model}@{number}", tags=dict(tags)
        )
        return str(made.info.run_id)


def _log(
    shelf: _Shelf,
    version: Version,
    known: dict[int, ModelVersion],
    *,
    with_model: bool = False,
) -> LoggedVersion:
    """Log a version as far as it is not logged, and add it to those that are known."""
    entry = known.get(version.number)
    is_new = entry is None or entry.tags.get(_DONE) != "true"
    opened = _opened(shelf.ledger, version)
    tags = _own_tags(shelf, version) | ({} if opened is None else _tags_of(opened))
    run_id = str(entry.run_id) if entry is not None else shelf.run(version.number, tags)
    if is_new:
        _fill(shelf, run_id, version, opened)
    if with_model:
        _add_model(shelf, run_id)
        tags |= {_HOLDS_MODEL: "true"}
    if _add_purge(shelf, run_id, version):
        tags |= {_PURGED: "true"}
    if entry is None:
        shelf.register()
        source = f"runs:/{run_id}/{_FOLDER}"
        entry = shelf.client.create_model_version(
            shelf.name, source, run_id, tags=tags, await_creation_for=0
        )
    for name, value in {**tags, _DONE: "true"}.items():
        if entry.tags.get(name) != value:
            shelf.client.set_model_version_tag(shelf.name, entry.version, name, value)
    shelf.client.set_terminated(run_id, RunStatus.to_string(RunStatus.FINISHED))
    known[version.number] = entry
    return LoggedVersion(
        model=shelf.model,
        tenant=shelf.tenant,
        version=version.number,
        certificate=version.sequence,
        registered_model=shelf.name,
        registered_version=str(entry.version),
        run_id=run_id,
        is_new=is_new,
    )


def _fill(shelf: _Shelf, run_id: str, version: Version, opened: SignedStatement | None) -> None:
    """Write measures and files into the run of a version."""
    client, ledger = shelf.client, shelf.ledger
    _add_text(client, run_id, ledger.public_key + "\n", _KEY)
    for number, statement in enumerate(ledger.keys.statements(), 1):
        _add_text(client, run_id, statement.decode(), f"{_STATEMENTS}/{number:04d}.json")
    figures = {"letheon.rows": float(version.live)}
    if opened is not None:
        figures |= _metrics_of(opened)
    now = int(time.time() * 1000)
    client.log_batch(run_id, [Metric(name, value, now, 0) for name, value in figures.items()])
    if version.sequence is None:
        return
    _add_text(client, run_id, ledger.certificates.envelope(version.sequence).decode(), _CERTIFICATE)
    _add_text(client, run_id, ledger.certificates.proof(version.sequence).decode(), _PROOF)


def _add_purge(shelf: _Shelf, run_id: str, version: Version) -> bool:
    """Add the attestation that what this version erased was purged, if there is one."""
    if version.sequence is None:
        return False
    try:
        data = shelf.ledger.certificates.purge_attestation(version.sequence)
    except LedgerMissingError:
        return False
    _add_text(shelf.client, run_id, data.decode(), _PURGE)
    shelf.client.set_tag(run_id, _PURGED, "true")
    return True


def _add_model(shelf: _Shelf, run_id: str) -> None:
    """Add the model's file, and say what that means."""
    from letheon.persist import save

    warnings.warn(
        f"MLflow gets a copy of model {shelf.model!r}, which may hold rows of people and which no "
        "purge of the ledger reaches; log a later version to have it removed",
        GuaranteeWarning,
        stacklevel=4,
    )
    with tempfile.TemporaryDirectory(prefix="letheon-mlflow-") as place:
        path = Path(place) / _MODEL
        save(shelf.ledger.models.load(shelf.model, tenant=shelf.tenant), path)
        shelf.client.log_artifact(run_id, str(path), _FOLDER)
    shelf.client.set_tag(run_id, _HOLDS_MODEL, "true")


def _move_head(shelf: _Shelf, head: int, known: Mapping[int, ModelVersion]) -> None:
    """Point the alias at the version that is served, and mark the older ones."""
    if head in known:
        shelf.client.set_registered_model_alias(shelf.name, HEAD, known[head].version)
    for number, entry in known.items():
        if number < head and _SUPERSEDED not in entry.tags:
            if entry.tags.get(_HOLDS_MODEL) == "true":
                _remove_model(shelf, str(entry.run_id))
                shelf.client.set_model_version_tag(shelf.name, entry.version, _HOLDS_MODEL, "false")
            shelf.client.set_model_version_tag(shelf.name, entry.version, _SUPERSEDED, str(head))


def _remove_model(shelf: _Shelf, run_id: str) -> None:
    """Remove the file of a model that is no longer served: it holds people who left since."""
    run = shelf.client.get_run(run_id)
    place: Any = get_artifact_repository(run.info.artifact_uri, shelf.client.tracking_uri)
    place.delete_artifacts(f"{_FOLDER}/{_MODEL}")
    shelf.client.set_tag(run_id, _HOLDS_MODEL, "false")


def _own_tags(shelf: _Shelf, version: Version) -> dict[str, str]:
    return {
        "letheon.ledger": shelf.ledger.name,
        "letheon.model": shelf.model,
        "letheon.tenant": shelf.tenant,
        "letheon.version": str(version.number),
        "letheon.address": version.address,
    }


def _tags_of(opened: SignedStatement) -> dict[str, str]:
    """Return what a certificate says, as tags: what is claimed, and what each measure rests on."""
    claims = opened.predicate
    said, subject = claims["guarantee"], opened.statement["subject"][0]
    tags = {
        "letheon.version": subject["name"].rpartition("@")[2],
        "letheon.address": subject["digest"]["sha256"],
        "letheon.ledger": claims["ledger"]["id"],
        "letheon.certificate": str(opened.sequence),
        "letheon.certificate_id": opened.id,
        "letheon.method": claims["method"]["name"],
        "letheon.guarantee": said["kind"],
        "letheon.requests": said["requests"],
        "letheon.releases": said["releases"],
        "letheon.decision": claims["monitor"]["decision"],
    }
    tags |= {f"letheon.{name}": said[name] for name in ("epsilon", "delta") if name in said}
    for name, measure in claims["measurements"].items():
        is_known = measure["metric"] != _NOT_MEASURED
        tags[f"letheon.{name}.basis"] = measure["basis"] if is_known else _NOT_MEASURED
        tags[f"letheon.{name}.metric"] = measure["metric"]
    return tags


def _metrics_of(opened: SignedStatement) -> dict[str, float]:
    """Return the figures of a certificate; what nobody measured is no figure."""
    claims = opened.predicate
    found = {
        f"letheon.{name}": float(measure["value"])
        for name, measure in claims["measurements"].items()
        if measure["metric"] != _NOT_MEASURED
    }
    account = claims["guarantee"]["accounting"]
    if "budget" in account:
        found["letheon.budget"] = float(account["budget"])
    found["letheon.rows_erased"] = float(claims["erasure"]["rows"])
    found["letheon.deletions_since_retrain"] = float(account["deletionsSinceRetrain"])
    return found


def _require_proof(opened: SignedStatement, proof: bytes | None) -> None:
    require(proof is not None, "the run holds no transition proof")
    data = opened.predicate["dataset"]
    digest = hashlib.sha256(proof or b"").hexdigest()
    require(digest == data["transitionProof"]["sha256"], "the proof is another one")
    before, after, erased = transition_roots(proof or b"")
    same = (before.hex(), after.hex()) == (data["rootBefore"], data["rootAfter"])
    require(same and erased == opened.predicate["erasure"]["rows"], "the proof shows another step")


def _opened(ledger: Ledger, version: Version) -> SignedStatement | None:
    if version.sequence is None:
        return None
    return open_envelope(ledger.certificates.envelope(version.sequence), ledger.keys.trust())


def _is_certified(ledger: Ledger, version: Version) -> bool:
    """Whether a version has what it is logged with: its certificate, or it needs none."""
    try:
        return version.sequence is None or bool(ledger.certificates.envelope(version.sequence))
    except LedgerMissingError:
        return False


def _is_complete(entry: ModelVersion | None) -> bool:
    """Whether nothing can be added; a registration erases nobody, so no purge is awaited."""
    if entry is None or entry.tags.get(_DONE) != "true":
        return False
    return "letheon.certificate" not in entry.tags or entry.tags.get(_PURGED) == "true"


def _add_text(client: MlflowClient, run_id: str, text: str, name: str) -> None:
    client.log_text(run_id, text, f"{_FOLDER}/{name}")
