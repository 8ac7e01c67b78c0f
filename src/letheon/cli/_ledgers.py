"""`letheon init`, `doctor`, `ledger`, `key` and `store`: the ledger, its keys and stores."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli import _command
from letheon.cli._certificates import read_statements
from letheon.cli._command import Answer, Listing, ledger_command, usage_errors
from letheon.exceptions import LedgerError, LedgerMissingError
from letheon.verifier import Trust, VerificationError, check_chain, check_purge, search_gaps

if TYPE_CHECKING:
    from letheon.ledger import Adoption, Finding, Ledger

ledgers = _command.make_group("ledger", "The ledger as a whole.")
keys = _command.make_group("key", "Keys that certificates are signed with.")
stores = _command.make_group("store", "Folders outside the ledger that may hold people.")

# What doctor looks at and a signature covers.
_SIGNED = ("keys", "certificates", "log")
# Numbers that are listed; of more, the first ones.
_LISTED = 20


def init(
    folder: Path,
    *,
    name: str,
    database: str | None = None,
    timezone: str = "Europe/Brussels",
    seat: str = "EU",
) -> Answer:
    """Make a ledger: settings, signing key, database.

    Example: letheon init erasures --name prod-eu-1

    Parameters
    ----------
    folder : DIR
        Folder to make it in.
    name : NAME
        Name of the ledger, as certificates carry it.
    database : URL, by default a SQLite file in DIR
        PostgreSQL: postgresql://user@host/name.
    timezone : ZONE
        Time zone of the controller's seat.
    seat : CODE
        Whose public holidays count: EU, none, BE, DE, FR, ...
    """
    import letheon

    with usage_errors():
        calendar = letheon.ledger.Calendar(seat=seat, timezone=timezone)
        made = letheon.Ledger.create(folder, name=name, database=database, calendar=calendar)
    with made as opened:
        document = {
            "ledger": opened.name,
            "folder": folder.resolve(),
            "public_key": opened.public_key,
        }
        text = (
            f"made the ledger {opened.name} in {folder}\n"
            f"public key {opened.public_key}\n"
            "Give this key to whoever shall verify certificates.\n"
            f"Keep a copy of sign-*.key, current and tag.key in {folder / 'keys'}\n"
            f"and of {folder / 'public'} in a safe place. Keep other keys no longer\n"
            "than your backups last: a key that was kept undoes an erasure."
        )
    return Answer(document, text)


def doctor(*, accept_clock: bool = False, ledger: _command.Home = None) -> Answer:
    """Look the ledger over: files, keys, certificates, log, due days, leftovers, clock.

    The exit status is 1 if something is wrong. A clock that was ahead has left times in the log
    that are still to come, and nothing is recorded until they have passed. A clock that is days
    ahead of the uptime of the machines ends no hold, and nothing is forgotten: it was set ahead, or
    the machines were off. In both cases set the clock right, then use --accept-clock once. The log
    tells of it.

    Example: letheon doctor --ledger erasures

    Parameters
    ----------
    accept_clock : bool
        First confirm that this machine's clock is right now.
    """
    findings: list[Finding] = []
    if accept_clock:
        with _command.open_ledger(ledger) as opened:
            was_ahead = opened.accept_clock()
        text = "the log goes on from this machine's clock" if was_ahead else "nothing to correct"
        findings.append(_finding("accept-clock", "ok", text))
    try:
        with _command.open_ledger(ledger) as opened:
            findings += opened.doctor()
    except LedgerError as error:
        # What keeps the ledger from being opened is a finding as well.
        if _command.status_of(error) != _command.REFUSED:
            raise
        findings.append(_finding("ledger", "error", str(error)))
    return _findings_answer(findings, empty="nothing to look at")


def _finding(check: str, level: Any, text: str) -> "Finding":
    from letheon.ledger import Finding

    return Finding(check, level, text)


def _findings_answer(findings: "Sequence[Finding]", *, empty: str) -> Answer:
    rows = [(finding.level, finding.check, finding.text) for finding in findings]
    status = _command.FAILED if any(finding.level == "error" for finding in findings) else 0
    shown = Listing(("", "check", "found"), rows, empty=empty, folds="found")
    return Answer(findings, shown, status=status)


@ledger_command(ledgers, "verify")
def verify(opened: "Ledger", *, key: str | None = None) -> Answer:
    """Verify what is signed: certificates, their chain and files, purges, log and checkpoints.

    The exit status is 1 if something does not hold.

    Example: letheon ledger verify --key ledger.pub

    Parameters
    ----------
    key : KEY, by default that of the ledger
        First public key: 64 hexadecimal digits, or a file of them.
    """
    findings = [finding for finding in opened.doctor() if finding.check in _SIGNED]
    pinned = opened.public_key if key is None else _command.read_public_key(key)
    return _findings_answer([*findings, _check_signed(opened, pinned)], empty="nothing is signed")


def _check_signed(opened: "Ledger", pinned: str) -> "Finding":
    """Follow the pinned key to every certificate, and from there to its purge."""
    envelopes = [opened.certificates.envelope(number) for number in opened.certificates.sequences()]
    attested = in_part = 0
    try:
        trust = Trust.from_pinned(pinned, read_statements(opened.folder / "public" / "keys"))
        for certificate in check_chain(envelopes, trust):
            try:
                purge = opened.certificates.purge_attestation(certificate.sequence)
            except LedgerMissingError:
                continue
            in_part += bool(search_gaps(check_purge(purge, certificate, trust).predicate))
            attested += 1
    except VerificationError as error:
        return _finding("signatures", "error", str(error))
    text = f"{len(envelopes)} certificates and {attested} purges follow from key {pinned[:16]}…"
    if in_part:
        text += f"; {in_part} of them not fully searched, see `letheon cert chain`"
    return _finding("signatures", "warning" if in_part else "ok", text)


@ledger_command(ledgers, "export")
def export(
    opened: "Ledger",
    folder: Path,
    *,
    tier: Literal["public", "auditor"] = "public",
    model: str | None = None,
    tenant: str | None = None,
) -> Answer:
    """Write a bundle that a stranger can verify with the public key.

    The public tier names nobody. An export for an auditor is an event of the log, and says until
    when it may be kept.

    Example: letheon ledger export bundle --tier auditor

    Parameters
    ----------
    folder : DIR
        A new folder.
    tier : {"public", "auditor"}
        The auditor's holds rows, salts and models: personal data.
    model : NAME
        This model only, in the auditor's part.
    tenant : NAME, by default all; default with --model
        Of this tenant only.
    """
    if model is not None:
        # Another tenant may have a model of that name.
        tenant = tenant or "default"
        opened.models.versions(model, tenant=tenant)
    with usage_errors():
        path = opened.export(folder, tier=tier, model=model, tenant=tenant)
    document = {"folder": path.resolve(), "tier": tier, "public_key": opened.public_key}
    text = (
        f"wrote the {tier} bundle {path}\n"
        f"verify it: letheon audit report {path} --key {opened.public_key}"
    )
    return Answer(document, text)


@ledger_command(ledgers, "upgrade", opens=False)
def upgrade(ledger: _command.Home = None) -> Answer:
    """Bring the database of an older letheon to this one's form; back it up first.

    Example: letheon ledger upgrade --ledger erasures
    """
    import letheon

    home = _command.find_home(ledger)
    letheon.Ledger.upgrade(home)
    return Answer({"folder": home.resolve()}, "the database has this version's form")


@ledger_command(ledgers, "adopt")
def adopt(opened: "Ledger", *, yes: bool = False) -> Answer:
    """Go on from a database that is older than the files, because the newer one is lost.

    Models, certificates and checkpoints that this database does not hold are given up: signed files
    are moved to superseded/, the next worker destroys the others. The log records it. Without --yes
    nothing is changed, and the exit status is 4 if there is something to adopt.

    Example: letheon ledger adopt --yes

    Parameters
    ----------
    yes : bool
        Do it; otherwise only say what is lost.
    """
    adoption = opened.adopt_database(yes=yes)
    status = _command.REFUSED if adoption.differences and not adoption.is_done else 0
    return Answer(adoption, "\n".join(_describe_adoption(adoption)), status=status)


def _describe_adoption(adoption: "Adoption") -> Iterator[str]:
    if not adoption.differences:
        yield "database and files agree; there is nothing to adopt"
        return
    yield from (f"differs: {text}" for text in adoption.differences)
    for kind in ("certificates", "checkpoints", "purges"):
        numbers: tuple[int, ...] = getattr(adoption, kind)
        if numbers:
            listed = ", ".join(map(str, numbers[:_LISTED])) + (
                "" if len(numbers) <= _LISTED else ", ..."
            )
            yield f"{kind} moved to superseded/: {len(numbers)} ({listed})"
    yield f"models that only the files know, destroyed by the next worker: {adoption.n_models}"
    yield (
        f"files that no version names, destroyed by the next worker: {adoption.n_blobs} blobs, "
        f"{adoption.n_keys} keys, {adoption.n_proofs} proofs"
    )
    for name in adoption.models:
        yield f"model {name!r} cannot be read any more: its files or its key are gone"
    for request in adoption.requests:
        yield f"request {request}: its ids cannot be read any more; file it again, then cancel it"
    yield (
        "this database is accepted; the log records it"
        if adoption.is_done
        else "nothing was changed; if the newer database is lost for good, add --yes"
    )


@ledger_command(ledgers, "checkpoint")
def checkpoint(opened: "Ledger", *, out: Path | None = None) -> Answer:
    """Sign a checkpoint of the log and print it; whoever keeps it sees a later roll-back.

    Example: letheon ledger checkpoint --out checkpoint.txt

    Parameters
    ----------
    out : FILE
        Write it to a file, for a witness.
    """
    taken = opened.log.checkpoint()
    if out is not None:
        out.write_text(taken.note, "utf-8")
    document = {"size": taken.size, "root": taken.root, "note": taken.note}
    text = taken.note.rstrip("\n") if out is None else f"{taken.size} events; wrote {out}"
    return Answer(document | {"digest": taken.digest}, text)


@ledger_command(keys, "list")
def list_keys(opened: "Ledger") -> Answer:
    """List the public keys; strangers pin the first.

    Example: letheon key list
    """
    known: Sequence[Any] = opened.keys.list()
    texts = []
    for key in known:
        signs = f"from {key.first} on" if key.last is None else f"{key.first} to {key.last}"
        if key.last is not None and key.last < key.first:
            signs = "none"
        texts.append(f"{key.state}: certificates {signs}")
        texts += [f"  public  {key.public}", f"  id      {key.keyid}"]
    return Answer(known, *texts)


@ledger_command(keys, "rotate")
def rotate(opened: "Ledger") -> Answer:
    """Sign with a new key from now on; old certificates stay valid.

    Example: letheon key rotate
    """
    keyid = opened.keys.rotate()
    text = (
        f"signs from now on with the key of id\n{keyid}\n"
        f"strangers go on with the first public key\n{opened.public_key}"
    )
    return Answer({"keyid": keyid}, text)


@ledger_command(keys, "revoke")
def revoke(opened: "Ledger", keyid: str, *, after: Annotated[int, typer.Option(min=0)]) -> Answer:
    """State that a key is not to be trusted after a certificate; rotate first.

    Example: letheon key revoke
    9b241b61c3c1262035366773f02a8643883e04ddc8d123c8b5876423598f7ba9 --after 41

    Parameters
    ----------
    keyid : KEY
        Id of the key, in full.
    after : N
        Certificates up to this number stay trusted.
    """
    with usage_errors():
        opened.keys.revoke(keyid, after=after)
    document = {"keyid": keyid, "after": after}
    return Answer(document, f"{keyid} is not trusted after certificate {after}")


@ledger_command(stores, "add")
def add_store(
    opened: "Ledger",
    name: str,
    folder: Path,
    *,
    owner: str = "operator",
    scope: str = "copies",
    days: Annotated[int | None, typer.Option(min=1)] = None,
) -> Answer:
    """Register a folder that every purge looks through.

    Example: letheon store add features /srv/features --owner data-team

    Parameters
    ----------
    name : NAME
        A code, for attestations.
    folder : DIR
        The folder.
    owner : CODE
        Who keeps it clean.
    scope : CODE
        What lies in it.
    days : N
        A backup that expires by itself after so many days.
    """
    path = _command.require_folder(folder)
    with usage_errors(), _command.print_warnings():
        opened.stores.add(name, path, owner=owner, scope=scope, days=days)
    return Answer({"store": name}, f"every purge looks through {folder} from now on")


@ledger_command(stores, "list")
def list_stores(opened: "Ledger") -> Answer:
    """List the registered folders.

    Example: letheon store list
    """
    folders = opened.stores.list()
    rows = [(store.name, store.path, store.owner, store.scope, store.days) for store in folders]
    columns = ("store", "folder", "owner", "scope", "days")
    return Answer(folders, Listing(columns, rows, empty="no folder is registered", folds="folder"))


@ledger_command(stores, "remove")
def remove_store(opened: "Ledger", name: str) -> Answer:
    """Take a folder off the registry; later purges do not speak of it.

    Example: letheon store remove features

    Parameters
    ----------
    name : NAME
        Name of the store.
    """
    if name not in {store.name for store in opened.stores.list()}:
        raise LedgerMissingError(f"there is no store {name!r}; `letheon store list` shows all")
    opened.stores.remove(name)
    return Answer({"store": name}, f"{name} is not looked through any more")
