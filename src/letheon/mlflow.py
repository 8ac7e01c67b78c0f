"""Log the model versions of a ledger in MLflow, with certificates, proofs and measures.

Each version becomes a run and a version of a registered model. The alias ``letheon-head`` points to
the served version, older versions are tagged ``letheon.superseded``, and `verify_logged` checks the
files with a public key. Only data that a public bundle contains is sent to MLflow, unless you also
log the model itself with ``with_model=True``.

This module needs ``letheon[mlflow,ledger]``.
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
    """A version of a model that is logged in MLflow.

    Attributes
    ----------
    model, tenant : str
        Name and tenant of the model in the ledger.
    version : int
        Number of the version in the ledger.
    certificate : int or None
        Number of its certificate; None for the registration.
    registered_model, registered_version : str
        Name and version in the registry of MLflow.
    run_id : str
        The run with measures and files.
    is_new : bool
        Whether this call logged the version, or completed an interrupted call.

    Examples
    --------
    >>> from letheon import Ledger
    >>> from letheon.mlflow import follow
    >>> with Ledger.open("erasures") as ledger:  # doctest: +SKIP
    ...     [(logged.model, logged.version) for logged in follow(ledger)]
    """

    model: str
    tenant: str
    version: int
    certificate: int | None
    registered_model: str
    registered_version: str
    run_id: str
    is_new: bool

    def __str__(self) -> str:
        """Return ledger version, MLflow version and run in one line."""
        target = f"{self.registered_model} version {self.registered_version}, run {self.run_id}"
        certificate = f"certificate {self.certificate}" if self.certificate else "registration"
        return f"{self.model}@{self.version} ({certificate}) -> {target}"


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

    A repeated call does not log anything again. It completes an interrupted call, and adds a purge
    attestation that was issued in the meantime.

    Parameters
    ----------
    ledger : Ledger
        The ledger of the model.
    model, tenant : str
        Name and tenant of the model.
    registered_model : str, optional
        Name in the registry of MLflow; by default ``model``, or ``tenant.model`` if the tenant is
        not "default".
    version : int, optional
        Number of the version; by default the served version.
    client : MlflowClient, optional
        By default a client for the configured tracking server.
    with_model : bool, default=False
        Whether to log the file of the model too. This works only for the served version; the file
        is removed from its run when a later version is logged. It may contain personal data, and
        no purge of the ledger destroys it.

    Returns
    -------
    LoggedVersion

    Raises
    ------
    UnknownModelError, LedgerMissingError
        The model or the version does not exist, or has no certificate yet.
    ValueError
        `with_model` is set, but the version is not the served one.

    Warns
    -----
    GuaranteeWarning
        With `with_model`: certificates do not cover this copy.

    Examples
    --------
    >>> from letheon import Ledger
    >>> from letheon.mlflow import log_version
    >>> with Ledger.open("erasures") as ledger:  # doctest: +SKIP
    ...     logged = log_version(ledger, "churn")
    """
    head = ledger.models.get(model, tenant=tenant).head
    number = head.number if version is None else version
    versions = ledger.models.versions(model, tenant=tenant, after=number - 1, limit=1)
    if not versions or versions[0].number != number:
        raise LedgerMissingError(f"model {model!r} has no version {number}")
    if with_model and number != head.number:
        raise ValueError(
            f"with_model=True needs the served version; the file of version {number} was destroyed"
        )
    registry = _RegistryEntry(ledger, client or MlflowClient(), model, tenant, registered_model)
    known = registry.list_logged()
    logged = _log_version(registry, versions[0], known, with_model=with_model)
    _move_head(registry, head.number, known)
    return logged


def follow(
    ledger: Ledger, *, tenant: str | None = None, client: MlflowClient | None = None
) -> tuple[LoggedVersion, ...]:
    """Log all versions that have not been logged yet; return the new ones.

    Call it after each batch, or from time to time: it continues where the last call stopped.

    Parameters
    ----------
    ledger : Ledger
        The ledger of the models.
    tenant : str, optional
        Models of one tenant only.
    client : MlflowClient, optional
        As for `log_version`.

    Returns
    -------
    tuple of LoggedVersion

    Examples
    --------
    >>> from letheon import Ledger
    >>> from letheon.mlflow import follow
    >>> with Ledger.open("erasures") as ledger:  # doctest: +SKIP
    ...     new = follow(ledger)
    """
    client = client or MlflowClient()
    new: list[LoggedVersion] = []
    for info in ledger.models.list(tenant=tenant):
        registry = _RegistryEntry(ledger, client, info.name, info.tenant, None)
        known = registry.list_logged()
        missing = [
            version
            for version in ledger.models.versions(info.name, tenant=info.tenant)
            if not _is_complete(known.get(version.number)) and _is_certified(ledger, version)
        ]
        new += [_log_version(registry, version, known) for version in missing]
        if missing:
            _move_head(registry, info.head.number, known)
    return tuple(version for version in new if version.is_new)


def verify_logged(run_id: str, key: str, *, client: MlflowClient | None = None) -> dict[str, Any]:
    """Verify a logged certificate and the files of its run; return the certificate's statement.

    This checks that the signature and the schema of the certificate are valid, that its proof shows
    the transition, that the purge attestation belongs to the certificate, and that the tags and
    metrics of the run agree with it. It does not check the chain and the log; for this, verify a
    bundle of the ledger.

    Parameters
    ----------
    run_id : str
        The run of a version with a certificate; the registration of a model has none.
    key : str
        First public key of the ledger in hexadecimal digits, from a source other than MLflow.
    client : MlflowClient, optional
        As for `log_version`.

    Returns
    -------
    dict
        The statement of the certificate.

    Raises
    ------
    letheon.verifier.VerificationError
        A check failed; the text says which.

    Examples
    --------
    >>> from letheon.mlflow import verify_logged
    >>> statement = verify_logged(logged.run_id, ledger.public_key)  # doctest: +SKIP
    """
    client = client or MlflowClient()
    run = client.get_run(run_id)
    with tempfile.TemporaryDirectory(prefix="letheon-mlflow-") as place:
        folder = Path(client.download_artifacts(run_id, _FOLDER, place))
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    require(
        _CERTIFICATE in files,
        f"run {run_id} has no certificate; only versions that a removal made have one "
        "(LoggedVersion.certificate is not None)",
    )
    statements = [files[name] for name in sorted(files) if name.startswith(f"{_STATEMENTS}/")]
    trust = Trust.from_pinned(key, statements)
    opened = open_envelope(files[_CERTIFICATE], trust)
    require(opened.is_certificate, "certificate.json is not a certificate of unlearning")
    _require_proof(opened, files.get(_PROOF))
    if _PURGE in files or run.data.tags.get(_PURGED) == "true":
        check_purge(files.get(_PURGE, b""), opened, trust)
    claim_tags = _tags_of(opened)
    wrong = [name for name, value in claim_tags.items() if run.data.tags.get(name) != value]
    require(not wrong, f"the tags {', '.join(wrong)} differ from the certificate")
    figures = _metrics_of(opened)
    wrong = [name for name, value in figures.items() if run.data.metrics.get(name) != value]
    require(not wrong, f"the metrics {', '.join(wrong)} differ from the certificate")
    return opened.statement


class _RegistryEntry:
    """The registered model in MLflow that belongs to a model of a ledger."""

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
        # MLflow rejects colons in names.
        self.name = registered_model or usual.replace(":", "-")
        if "'" in self.name:
            raise ValueError(f"registered_model={self.name!r} must not contain a single quote")

    def list_logged(self) -> dict[int, ModelVersion]:
        """Return the logged versions by their number in the ledger."""
        versions = self.client.search_model_versions(f"name='{self.name}'")
        return {
            int(version.tags["letheon.version"]): version
            for version in versions
            if version.tags.get("letheon.ledger") == self.ledger.name
            and version.tags.get("letheon.model") == self.model
            and version.tags.get("letheon.tenant") == self.tenant
        }

    def ensure_experiment(self) -> str:
        """Return the id of the experiment of this model; create it if necessary."""
        name = f"letheon/{self.name}"
        experiment = self.client.get_experiment_by_name(name)
        return str(
            self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        )

    def ensure_registered(self) -> None:
        """Create the registered model if necessary."""
        try:
            self.client.get_registered_model(self.name)
        except MlflowException:
            self.client.create_registered_model(self.name)

    def ensure_run(self, number: int, tags: Mapping[str, str]) -> str:
        """Return the id of the run of a version; create the run if it does not exist."""
        experiment = self.ensure_experiment()
        terms = [
            f"tags.`{name}` = '{tags[name]}'" for name in ("letheon.ledger", "letheon.address")
        ]
        for run in self.client.search_runs([experiment], " and ".join(terms)):
            return str(run.info.run_id)
        new_run = self.client.create_run(
            experiment, run_name=f"{self.model}@{number}", tags=dict(tags)
        )
        return str(new_run.info.run_id)


def _log_version(
    registry: _RegistryEntry,
    version: Version,
    known: dict[int, ModelVersion],
    *,
    with_model: bool = False,
) -> LoggedVersion:
    """Log the missing parts of a version and add the version to `known`.

    `known` contains the logged versions by their number in the ledger.
    """
    entry = known.get(version.number)
    is_new = entry is None or entry.tags.get(_DONE) != "true"
    opened = _open_certificate(registry.ledger, version)
    tags = _own_tags(registry, version) | ({} if opened is None else _tags_of(opened))
    run_id = str(entry.run_id) if entry is not None else registry.ensure_run(version.number, tags)
    if is_new:
        _write_run(registry, run_id, version, opened)
    if with_model:
        _add_model(registry, run_id)
        tags |= {_HOLDS_MODEL: "true"}
    if _add_purge(registry, run_id, version):
        tags |= {_PURGED: "true"}
    if entry is None:
        registry.ensure_registered()
        source = f"runs:/{run_id}/{_FOLDER}"
        entry = registry.client.create_model_version(
            registry.name, source, run_id, tags=tags, await_creation_for=0
        )
    for name, value in {**tags, _DONE: "true"}.items():
        if entry.tags.get(name) != value:
            registry.client.set_model_version_tag(registry.name, entry.version, name, value)
    registry.client.set_terminated(run_id, RunStatus.to_string(RunStatus.FINISHED))
    known[version.number] = entry
    return LoggedVersion(
        model=registry.model,
        tenant=registry.tenant,
        version=version.number,
        certificate=version.sequence,
        registered_model=registry.name,
        registered_version=str(entry.version),
        run_id=run_id,
        is_new=is_new,
    )


def _write_run(
    registry: _RegistryEntry, run_id: str, version: Version, opened: SignedStatement | None
) -> None:
    """Write keys, metrics, and the certificate with its proof (if any) to the run of a version."""
    client, ledger = registry.client, registry.ledger
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


def _add_purge(registry: _RegistryEntry, run_id: str, version: Version) -> bool:
    """Add the purge attestation of a version to its run; return whether there is one."""
    if version.sequence is None:
        return False
    try:
        data = registry.ledger.certificates.purge_attestation(version.sequence)
    except LedgerMissingError:
        return False
    _add_text(registry.client, run_id, data.decode(), _PURGE)
    registry.client.set_tag(run_id, _PURGED, "true")
    return True


def _add_model(registry: _RegistryEntry, run_id: str) -> None:
    """Add the file of the served model to a run, and warn that it may contain personal data."""
    from letheon.persist import save

    warnings.warn(
        f"MLflow receives a copy of model {registry.model!r}, which may contain personal data and "
        "is not destroyed by a purge of the ledger. To remove the copy, log a later version",
        GuaranteeWarning,
        stacklevel=4,
    )
    with tempfile.TemporaryDirectory(prefix="letheon-mlflow-") as place:
        path = Path(place) / _MODEL
        save(registry.ledger.models.load(registry.model, tenant=registry.tenant), path)
        registry.client.log_artifact(run_id, str(path), _FOLDER)
    registry.client.set_tag(run_id, _HOLDS_MODEL, "true")


def _move_head(registry: _RegistryEntry, head: int, known: Mapping[int, ModelVersion]) -> None:
    """Move the alias to the served version `head`, and tag older versions as superseded.

    Model files of older versions are removed.
    """
    if head in known:
        registry.client.set_registered_model_alias(registry.name, HEAD, known[head].version)
    for number, entry in known.items():
        if number < head and _SUPERSEDED not in entry.tags:
            if entry.tags.get(_HOLDS_MODEL) == "true":
                _remove_model(registry, str(entry.run_id))
                registry.client.set_model_version_tag(
                    registry.name, entry.version, _HOLDS_MODEL, "false"
                )
            registry.client.set_model_version_tag(
                registry.name, entry.version, _SUPERSEDED, str(head)
            )


def _remove_model(registry: _RegistryEntry, run_id: str) -> None:
    """Remove the model file from the run of an older version: it may contain erased rows."""
    run = registry.client.get_run(run_id)
    place: Any = get_artifact_repository(run.info.artifact_uri, registry.client.tracking_uri)
    place.delete_artifacts(f"{_FOLDER}/{_MODEL}")
    registry.client.set_tag(run_id, _HOLDS_MODEL, "false")


def _own_tags(registry: _RegistryEntry, version: Version) -> dict[str, str]:
    return {
        "letheon.ledger": registry.ledger.name,
        "letheon.model": registry.model,
        "letheon.tenant": registry.tenant,
        "letheon.version": str(version.number),
        "letheon.address": version.address,
    }


def _tags_of(opened: SignedStatement) -> dict[str, str]:
    """Return the claims of a certificate and the basis of each measure, as tags."""
    claims = opened.predicate
    claim_tags, subject = claims["guarantee"], opened.statement["subject"][0]
    tags = {
        "letheon.version": subject["name"].rpartition("@")[2],
        "letheon.address": subject["digest"]["sha256"],
        "letheon.ledger": claims["ledger"]["id"],
        "letheon.certificate": str(opened.sequence),
        "letheon.certificate_id": opened.id,
        "letheon.method": claims["method"]["name"],
        "letheon.guarantee": claim_tags["kind"],
        "letheon.requests": claim_tags["requests"],
        "letheon.releases": claim_tags["releases"],
        "letheon.decision": claims["monitor"]["decision"],
    }
    tags |= {
        f"letheon.{name}": claim_tags[name] for name in ("epsilon", "delta") if name in claim_tags
    }
    for name, measure in claims["measurements"].items():
        is_known = measure["metric"] != _NOT_MEASURED
        tags[f"letheon.{name}.basis"] = measure["basis"] if is_known else _NOT_MEASURED
        tags[f"letheon.{name}.metric"] = measure["metric"]
    return tags


def _metrics_of(opened: SignedStatement) -> dict[str, float]:
    """Return the measured values of a certificate by metric name."""
    claims = opened.predicate
    metrics = {
        f"letheon.{name}": float(measure["value"])
        for name, measure in claims["measurements"].items()
        if measure["metric"] != _NOT_MEASURED
    }
    account = claims["guarantee"]["accounting"]
    if "budget" in account:
        metrics["letheon.budget"] = float(account["budget"])
    metrics["letheon.rows_erased"] = float(claims["erasure"]["rows"])
    metrics["letheon.deletions_since_retrain"] = float(account["deletionsSinceRetrain"])
    return metrics


def _require_proof(opened: SignedStatement, proof: bytes | None) -> None:
    require(proof is not None, "the run has no transition proof")
    data = opened.predicate["dataset"]
    digest = hashlib.sha256(proof or b"").hexdigest()
    require(
        digest == data["transitionProof"]["sha256"],
        "the hash of the proof differs from the one in the certificate",
    )
    before, after, erased = transition_roots(proof or b"")
    same = (before.hex(), after.hex()) == (data["rootBefore"], data["rootAfter"])
    require(
        same and erased == opened.predicate["erasure"]["rows"],
        "the proof does not match the roots and the number of rows in the certificate",
    )


def _open_certificate(ledger: Ledger, version: Version) -> SignedStatement | None:
    if version.sequence is None:
        return None
    return open_envelope(ledger.certificates.envelope(version.sequence), ledger.keys.trust())


def _is_certified(ledger: Ledger, version: Version) -> bool:
    """Return whether the certificate of a version is issued; True for a registration."""
    try:
        return version.sequence is None or bool(ledger.certificates.envelope(version.sequence))
    except LedgerMissingError:
        return False


def _is_complete(entry: ModelVersion | None) -> bool:
    """Return whether a version is logged with everything, including its purge attestation.

    A registration erases nothing, so it has no purge attestation.
    """
    if entry is None or entry.tags.get(_DONE) != "true":
        return False
    return "letheon.certificate" not in entry.tags or entry.tags.get(_PURGED) == "true"


def _add_text(client: MlflowClient, run_id: str, text: str, name: str) -> None:
    client.log_text(run_id, text, f"{_FOLDER}/{name}")
