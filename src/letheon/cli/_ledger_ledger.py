"""`letheon ledger`: the ledger as a whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from letheon.cli._ledger_certs import statements_in
from letheon.cli._ledger_common import (
    FAILED,
    REFUSED,
    AsJson,
    Home,
    LedgerCommand,
    group,
    home_of,
    open_ledger,
    public_key,
    reported,
    say,
    say_table,
    taken_at_their_word,
)
from letheon.exceptions import LedgerMissingError
from letheon.verifier import Refused, Trust, check_chain, check_purge, search_gaps

if TYPE_CHECKING:
    from letheon.ledger import Adoption, Finding, Ledger

__all__ = ["ledgers"]

ledgers = group("ledger", "The ledger as a whole.")

# What doctor looks at and a signature covers.
_SIGNED = ("keys", "certificates", "log")
# Numbers that are listed; of more, the first ones.
_LISTED = 20


@ledgers.command("verify", cls=LedgerCommand)
def verify(
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="First public key: 64 hexadecimal digits, or a file of them.",
            show_default="that of the ledger",
        ),
    ] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Verify what is signed: certificates, their chain and files, purges, log and checkpoints.

    The exit status is 1 if something does not hold.

    Example: letheon ledger verify --key ledger.pub
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = [one for one in opened.doctor() if one.check in _SIGNED]
        found.append(_signed(opened, opened.public_key if key is None else public_key(key)))
        lines = [(one.level, one.check, one.text) for one in found]
        columns = ("", "check", "found")
        say_table(as_json, found, columns, lines, empty="nothing is signed", folds="found")
    if any(one.level == "error" for one in found):
        raise typer.Exit(FAILED)


def _signed(opened: "Ledger", pinned: str) -> "Finding":
    """Follow the pinned key to every certificate, and from there to its purge."""
    from letheon.ledger import Finding

    envelopes = [opened.certificates.envelope(number) for number in opened.certificates.sequences()]
    attested = in_part = 0
    try:
        trust = Trust.from_pinned(pinned, statements_in(opened.folder / "public" / "keys"))
        for certificate in check_chain(envelopes, trust):
            try:
                purge = opened.certificates.purge_attestation(certificate.sequence)
            except LedgerMissingError:
                continue
            in_part += bool(search_gaps(check_purge(purge, certificate, trust).predicate))
            attested += 1
    except Refused as error:
        return Finding("signatures", "error", str(error))
    text = f"{len(envelopes)} certificates and {attested} purges follow from key {pinned[:16]}…"
    if in_part:
        text += f"; {in_part} of them not fully searched, see `letheon cert chain`"
    return Finding("signatures", "warning" if in_part else "ok", text)


@ledgers.command("export", cls=LedgerCommand)
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    tier: Annotated[
        Literal["public", "auditor"],
        typer.Option(help="The auditor's holds rows, salts and models: personal data."),
    ] = "public",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="This model only, in the auditor's part.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of this tenant only.", show_default="all; default with --model"
        ),
    ] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write a bundle that a stranger can verify with the public key.

    The public tier names nobody. An export for an auditor is an event of the log, and says until
    when it may be kept.

    Example: letheon ledger export bundle --tier auditor
    """
    with reported(as_json), open_ledger(ledger) as opened:
        if model is not None:
            # Another tenant may have a model of that name.
            tenant = tenant or "default"
            opened.models.versions(model, tenant=tenant)
        with taken_at_their_word():
            path = opened.export(folder, tier=tier, model=model, tenant=tenant)
        document = {"folder": path.resolve(), "tier": tier, "public_key": opened.public_key}
        text = (
            f"wrote the {tier} bundle {path}\n"
            f"verify it: letheon audit report {path} --key {opened.public_key}"
        )
        say(as_json, document, text)


@ledgers.command("upgrade", cls=LedgerCommand)
def upgrade(ledger: Home = None, as_json: AsJson = False) -> None:
    """Bring the database of an older letheon to this one's form; back it up first.

    Example: letheon ledger upgrade --ledger erasures
    """
    with reported(as_json):
        import letheon

        home = home_of(ledger)
        letheon.Ledger.upgrade(home)
        say(as_json, {"folder": home.resolve()}, "the database has this version's form")


@ledgers.command("adopt", cls=LedgerCommand)
def adopt(
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="Do it; otherwise only say what is lost.")
    ] = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Go on from a database that is older than the files, because the newer one is lost.

    Models, certificates and checkpoints that this database does not hold are given up: signed files
    are moved to superseded/, the next worker destroys the others. The log records it. Without --yes
    nothing is changed, and the exit status is 4 if there is something to adopt.

    Example: letheon ledger adopt --yes
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.adopt_database(yes=yes)
        say(as_json, found, "\n".join(_adopted(found)))
    if found.differences and not found.is_done:
        raise typer.Exit(REFUSED)


def _adopted(found: "Adoption") -> Iterator[str]:
    if not found.differences:
        yield "database and files agree; there is nothing to adopt"
        return
    yield from (f"differs: {text}" for text in found.differences)
    for kind in ("certificates", "checkpoints", "purges"):
        numbers: tuple[int, ...] = getattr(found, kind)
        if numbers:
            listed = ", ".join(map(str, numbers[:_LISTED])) + (
                "" if len(numbers) <= _LISTED else ", ..."
            )
            yield f"{kind} moved to superseded/: {len(numbers)} ({listed})"
    yield f"models that only the files know, destroyed by the next worker: {found.n_models}"
    yield (
        f"files that no version names, destroyed by the next worker: {found.n_blobs} blobs, "
        f"{found.n_keys} keys, {found.n_proofs} proofs"
    )
    for name in found.models:
        yield f"model {name!r} cannot be read any more: its files or its key are gone"
    for request in found.requests:
        yield f"request {request}: its ids cannot be read any more; file it again, then cancel it"
    yield (
        "this database is accepted; the log records it"
        if found.is_done
        else "nothing was changed; if the newer database is lost for good, add --yes"
    )


@ledgers.command("checkpoint", cls=LedgerCommand)
def checkpoint(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to a file, for a witness.")
    ] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Sign a checkpoint of the log and print it; whoever keeps it sees a later roll-back.

    Example: letheon ledger checkpoint --out checkpoint.txt
    """
    with reported(as_json), open_ledger(ledger) as opened:
        taken = opened.log.checkpoint()
        if out is not None:
            out.write_text(taken.note, "utf-8")
        document = {"size": taken.size, "root": taken.root, "note": taken.note}
        text = taken.note.rstrip("\n") if out is None else f"{taken.size} events; wrote {out}"
        say(as_json, document | {"digest": taken.digest}, text)
