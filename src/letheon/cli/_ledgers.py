"""`letheon init`, `doctor`, `ledger`, `key` and `store`: the ledger, its keys and stores."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli import _command
from letheon.cli._certificates import read_statements
from letheon.cli._command import CommandOutput, Listing, ledger_command, wrap_usage_errors
from letheon.exceptions import LedgerError, LedgerMissingError
from letheon.verifier import Trust, VerificationError, check_chain, check_purge, search_gaps

if TYPE_CHECKING:
    from letheon.ledger import Adoption, Finding, Ledger

ledgers = _command.make_group("ledger", "Verify, export and repair the ledger.")
keys = _command.make_group("key", "List, rotate and revoke signing keys.")
stores = _command.make_group(
    "store", "Register folders outside the ledger that may contain personal data."
)

# Checks of `letheon doctor` on signed content.
_SIGNED = ("keys", "certificates", "log")
# At most so many numbers are listed.
_LISTED = 20


def init(
    folder: Path,
    *,
    name: str,
    database: str | None = None,
    timezone: str = "Europe/Brussels",
    seat: str = "EU",
) -> CommandOutput:
    """Create a ledger: settings, signing key, database.

    Example: letheon init erasures --name prod-eu-1

    Parameters
    ----------
    folder : DIR
        New folder for the ledger.
    name : NAME
        Name of the ledger, shown in certificates.
    database : URL, by default a SQLite file in DIR
        Database; for PostgreSQL: postgresql://user@host/name.
    timezone : ZONE
        Time zone of the controller.
    seat : CODE
        Country whose public holidays count for deadlines: EU, none, BE, DE, FR, ...
    """
    import letheon

    with wrap_usage_errors():
        calendar = letheon.ledger.Calendar(seat=seat, timezone=timezone)
        created = letheon.Ledger.create(folder, name=name, database=database, calendar=calendar)
    with created as opened:
        document = {
            "ledger": opened.name,
            "folder": folder.resolve(),
            "public_key": opened.public_key,
        }
        text = (
            f"created the ledger {opened.name} in {folder}\n"
            f"public key {opened.public_key}\n"
            "Give this key to everyone who verifies certificates.\n"
            f"Back up sign-*.key, current and tag.key in {folder / 'keys'},\n"
            f"and {folder / 'public'}. Do not keep copies of the other keys longer\n"
            "than your other backups: an old copy of a key undoes an erasure."
        )
    return CommandOutput(document, text)


def doctor(*, accept_clock: bool = False, ledger: _command.Home = None) -> CommandOutput:
    """Check the health of the ledger: files, keys, certificates, log, deadlines and clock.

    The exit status is 1 if a check failed. If the clock was ahead, the log has times in the future,
    and nothing is recorded until these times have passed. If the clock is days ahead of the uptime
    of the machines (it was set ahead, or the machines were off), holds do not end and old tags are
    not deleted. In both cases, make sure that the clock is right, then run the command once with
    --accept-clock. The log records that the clock was accepted.

    Example: letheon doctor --ledger erasures

    Parameters
    ----------
    accept_clock : bool
        Confirm that the clock of this machine is right, before the checks.
    """
    findings: list[Finding] = []
    if accept_clock:
        with _command.open_ledger(ledger) as opened:
            was_ahead = opened.accept_clock()
        text = (
            "the log continues with the clock of this machine"
            if was_ahead
            else "nothing to correct"
        )
        findings.append(_make_finding("accept-clock", "ok", text))
    try:
        with _command.open_ledger(ledger) as opened:
            findings += opened.doctor()
    except LedgerError as error:
        # A ledger that cannot be opened is a finding too.
        if _command.find_exit_status(error) != _command.REFUSED:
            raise
        findings.append(_make_finding("ledger", "error", str(error)))
    return _format_findings(findings, empty="nothing to check")


def _make_finding(check: str, level: Any, text: str) -> "Finding":
    from letheon.ledger import Finding

    return Finding(check, level, text)


def _format_findings(findings: "Sequence[Finding]", *, empty: str) -> CommandOutput:
    rows = [(finding.level, finding.check, finding.text) for finding in findings]
    status = _command.FAILED if any(finding.level == "error" for finding in findings) else 0
    listing = Listing(("", "check", "finding"), rows, empty=empty, folds="finding")
    return CommandOutput(findings, listing, status=status)


@ledger_command(ledgers, "verify")
def verify_ledger(ledger: "Ledger", *, key: str | None = None) -> CommandOutput:
    """Verify signed content: certificates, their chain and files, purges, log and checkpoints.

    The exit status is 1 if any of these is not valid.

    Example: letheon ledger verify --key ledger.pub

    Parameters
    ----------
    key : KEY, by default the key of the ledger
        First public key: 64 hexadecimal digits, or a file with them.
    """
    findings = [finding for finding in ledger.doctor() if finding.check in _SIGNED]
    pinned = ledger.public_key if key is None else _command.read_public_key(key)
    return _format_findings([*findings, _check_signed(ledger, pinned)], empty="nothing is signed")


def _check_signed(ledger: "Ledger", pinned: str) -> "Finding":
    """Verify every certificate, and the attestation of its purge, with the pinned key."""
    envelopes = [ledger.certificates.envelope(number) for number in ledger.certificates.sequences()]
    attested = in_part = 0
    try:
        trust = Trust.from_pinned(pinned, read_statements(ledger.folder / "public" / "keys"))
        for certificate in check_chain(envelopes, trust):
            try:
                purge = ledger.certificates.purge_attestation(certificate.sequence)
            except LedgerMissingError:
                continue
            in_part += bool(search_gaps(check_purge(purge, certificate, trust).predicate))
            attested += 1
    except VerificationError as error:
        return _make_finding("signatures", "error", str(error))
    counts = f"{len(envelopes)} certificate(s) and {attested} purge(s)"
    text = f"{counts} are valid under key {pinned[:16]}…"
    if in_part:
        text += f"; {in_part} of them not fully searched, see `letheon cert chain`"
    return _make_finding("signatures", "warning" if in_part else "ok", text)


@ledger_command(ledgers, "export")
def export_bundle(
    ledger: "Ledger",
    folder: Path,
    *,
    tier: Literal["public", "auditor"] = "public",
    model: str | None = None,
    tenant: str | None = None,
) -> CommandOutput:
    """Write a bundle that a third party can verify with the public key.

    The public tier contains no personal data. An auditor export is recorded in the log and states
    how long it may be kept.

    Example: letheon ledger export bundle --tier auditor

    Parameters
    ----------
    folder : DIR
        New folder for the bundle.
    tier : {"public", "auditor"}
        The auditor tier contains rows, salts and models: personal data.
    model : NAME
        Export this model only, in the auditor tier.
    tenant : NAME, by default all tenants; the tenant "default" with --model
        Export this tenant only.
    """
    if model is not None:
        # Another tenant may have a model of that name.
        tenant = tenant or "default"
        ledger.models.versions(model, tenant=tenant)
    with wrap_usage_errors():
        path = ledger.export(folder, tier=tier, model=model, tenant=tenant)
    document = {"folder": path.resolve(), "tier": tier, "public_key": ledger.public_key}
    text = (
        f"wrote the {tier} bundle {path}\n"
        f"verify it: letheon audit report {path} --key {ledger.public_key}"
    )
    return CommandOutput(document, text)


@ledger_command(ledgers, "upgrade", opens=False)
def upgrade_ledger(ledger: _command.Home = None) -> CommandOutput:
    """Upgrade a database from an older version of letheon; back up the database first.

    Example: letheon ledger upgrade --ledger erasures
    """
    import letheon

    home = _command.find_home(ledger)
    letheon.Ledger.upgrade(home)
    return CommandOutput({"folder": home.resolve()}, "the database is up to date")


@ledger_command(ledgers, "adopt")
def adopt_database(ledger: "Ledger", *, yes: bool = False) -> CommandOutput:
    """Accept a database that is older than the files, after the newer database was lost.

    Models, certificates and checkpoints that are not in this database are lost: signed files are
    moved to superseded/, and the next worker deletes the other files. The log records that the
    database was accepted. Without --yes nothing is changed, and the exit status is 4 if database
    and files differ.

    Example: letheon ledger adopt --yes

    Parameters
    ----------
    yes : bool
        Accept the database; without this, only show what would be lost.
    """
    adoption = ledger.adopt_database(yes=yes)
    status = _command.REFUSED if adoption.differences and not adoption.is_done else 0
    return CommandOutput(adoption, "\n".join(_describe_adoption(adoption)), status=status)


def _describe_adoption(adoption: "Adoption") -> Iterator[str]:
    if not adoption.differences:
        yield "database and files agree; nothing to do"
        return
    yield from (f"differs: {text}" for text in adoption.differences)
    for kind in ("certificates", "checkpoints", "purges"):
        numbers: tuple[int, ...] = getattr(adoption, kind)
        if numbers:
            listed = ", ".join(map(str, numbers[:_LISTED])) + (
                "" if len(numbers) <= _LISTED else ", ..."
            )
            yield f"{kind} moved to superseded/: {len(numbers)} ({listed})"
    yield f"models that are only in the files, deleted by the next worker: {adoption.n_models}"
    yield (
        f"files that belong to no version, deleted by the next worker: {adoption.n_blobs} blobs, "
        f"{adoption.n_keys} keys, {adoption.n_proofs} proofs"
    )
    for name in adoption.models:
        yield f"model {name!r} cannot be read any more: its files or its key are missing"
    for request in adoption.requests:
        yield f"request {request}: its ids cannot be read any more; file it again, then cancel it"
    yield (
        "this database is accepted; the log records it"
        if adoption.is_done
        else "nothing was changed; if the newer database cannot be restored, add --yes"
    )


@ledger_command(ledgers, "checkpoint")
def sign_checkpoint(ledger: "Ledger", *, out: Path | None = None) -> CommandOutput:
    """Sign a checkpoint of the log and print it; an auditor who keeps it detects a later rollback.

    Example: letheon ledger checkpoint --out checkpoint.txt

    Parameters
    ----------
    out : FILE
        Write the checkpoint to a file, for a witness.
    """
    checkpoint = ledger.log.checkpoint()
    if out is not None:
        out.write_text(checkpoint.note, "utf-8")
    document = {"size": checkpoint.size, "root": checkpoint.root, "note": checkpoint.note}
    text = checkpoint.note.rstrip("\n") if out is None else f"{checkpoint.size} events; wrote {out}"
    return CommandOutput(document | {"digest": checkpoint.digest}, text)


@ledger_command(keys, "list")
def list_keys(ledger: "Ledger") -> CommandOutput:
    """List the public keys of the ledger; verifiers need only the first key.

    Example: letheon key list
    """
    known: Sequence[Any] = ledger.keys.list()
    texts = []
    for key in known:
        signs = f"from {key.first} on" if key.last is None else f"{key.first} to {key.last}"
        if key.last is not None and key.last < key.first:
            signs = "none"
        texts.append(f"{key.state}: certificates {signs}")
        texts += [f"  public  {key.public}", f"  id      {key.keyid}"]
    return CommandOutput(known, *texts)


@ledger_command(keys, "rotate")
def rotate_key(ledger: "Ledger") -> CommandOutput:
    """Create a new signing key; old certificates stay valid.

    Example: letheon key rotate
    """
    keyid = ledger.keys.rotate()
    text = (
        f"new certificates are signed with the key\n{keyid}\n"
        f"verifiers still use the first public key\n{ledger.public_key}"
    )
    return CommandOutput({"keyid": keyid}, text)


@ledger_command(keys, "revoke")
def revoke_key(
    ledger: "Ledger", keyid: str, *, after: Annotated[int, typer.Option(min=0)]
) -> CommandOutput:
    """Revoke a key: later certificates with its signature are not trusted. Rotate the key first.

    Example: letheon key revoke
    9b241b61c3c1262035366773f02a8643883e04ddc8d123c8b5876423598f7ba9 --after 41

    Parameters
    ----------
    keyid : KEY
        Full id of the key.
    after : N
        Certificates up to this number stay trusted.
    """
    with wrap_usage_errors():
        ledger.keys.revoke(keyid, after=after)
    document = {"keyid": keyid, "after": after}
    return CommandOutput(document, f"{keyid} is not trusted after certificate {after}")


@ledger_command(stores, "add")
def add_store(
    ledger: "Ledger",
    name: str,
    folder: Path,
    *,
    owner: str = "operator",
    scope: str = "copies",
    days: Annotated[int | None, typer.Option(min=1)] = None,
) -> CommandOutput:
    """Register a folder that every purge searches.

    Example: letheon store add features /srv/features --owner data-team

    Parameters
    ----------
    name : NAME
        Name of the store, shown in attestations.
    folder : DIR
        Folder to search.
    owner : CODE
        Team that is responsible for deleting data in the folder.
    scope : CODE
        Kind of data in the folder.
    days : N
        For a backup: days after which its files expire.
    """
    path = _command.require_folder(folder)
    with wrap_usage_errors(), _command.print_warnings():
        ledger.stores.add(name, path, owner=owner, scope=scope, days=days)
    return CommandOutput({"store": name}, f"every purge searches {folder} from now on")


@ledger_command(stores, "list")
def list_stores(ledger: "Ledger") -> CommandOutput:
    """List the registered folders.

    Example: letheon store list
    """
    folders = ledger.stores.list()
    rows = [(store.name, store.path, store.owner, store.scope, store.days) for store in folders]
    columns = ("store", "folder", "owner", "scope", "days")
    return CommandOutput(
        folders, Listing(columns, rows, empty="no folder is registered", folds="folder")
    )


@ledger_command(stores, "remove")
def remove_store(ledger: "Ledger", name: str) -> CommandOutput:
    """Unregister a store; later purges neither search nor list it.

    Example: letheon store remove features

    Parameters
    ----------
    name : NAME
        Name of the store.
    """
    if name not in {store.name for store in ledger.stores.list()}:
        raise LedgerMissingError(
            f"there is no store {name!r}; run `letheon store list` to see all stores"
        )
    ledger.stores.remove(name)
    return CommandOutput({"store": name}, f"{name} is no longer searched")
