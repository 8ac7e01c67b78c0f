"""`letheon cert`: read and verify certificates."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from letheon.cli._ledger_common import (
    FAILED,
    AsJson,
    Home,
    LedgerCommand,
    UsageError,
    group,
    open_ledger,
    public_key,
    reported,
    require_folder,
    say,
    say_facts,
    say_table,
)
from letheon.cli._ledger_words import guarantee_text, summary
from letheon.exceptions import LedgerMissingError
from letheon.verifier import (
    SMALL,
    UNLEARNING,
    Refused,
    Trust,
    certificate_id,
    check_chain,
    check_schema,
    from_base64,
    open_envelope,
    parse_strict,
    read_capped,
    search_gaps,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger

__all__ = ["certs", "statements_in"]

certs = group("cert", "Certificates of unlearning.")

Certificate = Annotated[
    str, typer.Argument(metavar="CERTIFICATE", help="Its number in the ledger, or its file.")
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="First public key of the ledger: 64 hexadecimal digits, or a file of them.",
        show_default="that of the ledger, for a number",
    ),
]
Purge = Annotated[
    bool,
    typer.Option("--purge", metavar="", help="The attestation of the purge that followed it."),
]


_LONGEST_NUMBER = 15


@dataclass(frozen=True)
class _Envelope:
    """An envelope, where keys that may have signed it stand, and what became of the purge."""

    data: bytes
    statements: list[bytes]
    pinned: str | None
    purge: str | None


def statements_in(folder: Path) -> list[bytes]:
    """Return the rotations and revocations of a folder; they prove themselves."""
    return [read_capped(path, SMALL) for path in sorted(folder.glob("[0-9]*.json"))]


def _find(word: str, folder: Path | None, *, purge: bool) -> _Envelope:
    path = Path(word)
    if path.is_file():
        home = path.absolute().parent.parent
        beside = [*statements_in(home / "keys"), *statements_in(home / "public" / "keys")]
        return _Envelope(read_capped(path, SMALL), beside, None, None)
    if not (word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER):
        raise FileNotFoundError(f"there is no file {word}, and it is no number of a certificate")
    with open_ledger(folder) as opened:
        sequence, known = int(word), statements_in(opened.folder / "public" / "keys")
        data = (
            opened.certificates.purge_attestation(sequence)
            if purge
            else opened.certificates.envelope(sequence)
        )
        return _Envelope(data, known, opened.public_key, _purge_of(opened, sequence))


_NOT_YET = "not yet"


def _purge_of(opened: "Ledger", sequence: int) -> str:
    """Return what became of the purge after a certificate."""
    try:
        claims = _statement(opened.certificates.purge_attestation(sequence))["predicate"]
    except LedgerMissingError:
        return _NOT_YET
    gaps = search_gaps(claims)
    return f"attested, not fully searched: {gaps}" if gaps else "attested"


def _statement(envelope: bytes) -> dict[str, Any]:
    """Return what an envelope says, in the form that the schema asks for; nobody vouches for it."""
    certificate_id(envelope)
    statement: dict[str, Any] = parse_strict(from_base64(parse_strict(envelope)["payload"]), SMALL)
    check_schema(statement)
    return statement


@certs.command("show", cls=LedgerCommand)
def show(
    certificate: Certificate,
    purge: Purge = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what a certificate says, and what it does not claim; a file is read unverified.

    Example: letheon cert show 3
    """
    with reported(as_json):
        found = _find(certificate, ledger, purge=purge)
        statement = _statement(found.data)
        if as_json:
            purged = None if found.purge is None else found.purge != _NOT_YET
            document = {"id": certificate_id(found.data), "purged": purged, "purge": found.purge}
            say(True, document | {"statement": statement}, "")
        else:
            say_facts(summary(statement, certificate_id(found.data), found.purge))


@certs.command("verify", cls=LedgerCommand)
def verify(
    certificate: Certificate,
    key: Key = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the ledger's key rotations and revocations.",
            show_default="beside the file's folder",
        ),
    ] = None,
    purge: Purge = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Verify signature, schema and key of one certificate; exit status 1 if one does not hold.

    Its place in the chain, and whether the work was done: letheon audit report.

    Example: letheon cert verify bundle/certificates/000003.json --key ledger.pub
    """
    with reported(as_json):
        found = _find(certificate, ledger, purge=purge)
        pinned = found.pinned if key is None else public_key(key)
        if pinned is None:
            raise UsageError("a file is verified with --key KEY, from a source that you trust")
        beside = found.statements if keys is None else statements_in(require_folder(keys))
        document = _verified(found.data, pinned, beside)
        say(as_json, document, _verdict(document))
    if not document["verified"]:
        raise typer.Exit(FAILED)


def _verified(data: bytes, pinned: str, statements: list[bytes]) -> dict[str, Any]:
    try:
        opened = open_envelope(data, Trust.from_pinned(pinned, statements))
    except Refused as error:
        return {"verified": False, "reason": str(error), "key": pinned}
    about = {"sequence": opened.sequence, "ledger": opened.predicate["ledger"]["id"]}
    kind = "certificate" if opened.statement["predicateType"] == UNLEARNING else "attestation"
    return {"verified": True, "kind": kind, "id": opened.id, "key": pinned} | about


def _verdict(document: dict[str, Any]) -> str:
    if not document["verified"]:
        return f"does NOT hold: {document['reason']}"
    return (
        f"{document['kind']} {document['sequence']} of ledger {document['ledger']} holds: "
        f"signature, schema, key\nid {document['id']}"
    )


@certs.command("chain", cls=LedgerCommand)
def chain(key: Key = None, ledger: Home = None, as_json: AsJson = False) -> None:
    """List all certificates and verify that they are one chain; exit status 1 if they are not.

    Example: letheon cert chain
    """
    with reported(as_json), open_ledger(ledger) as opened:
        envelopes = [
            opened.certificates.envelope(number) for number in opened.certificates.sequences()
        ]
        lines = [_link(_statement(data), opened) for data in envelopes]
        pinned = opened.public_key if key is None else public_key(key)
        reason = _broken(envelopes, pinned, statements_in(opened.folder / "public" / "keys"))
        document = {"verified": reason is None, "reason": reason, "certificates": lines}
        if as_json:
            say(True, document, "")
        else:
            _say_chain(lines, reason)
    if reason is not None:
        raise typer.Exit(FAILED)


def _broken(envelopes: list[bytes], pinned: str, statements: list[bytes]) -> str | None:
    try:
        check_chain(envelopes, Trust.from_pinned(pinned, statements))
    except Refused as error:
        return str(error)
    return None


def _link(statement: dict[str, Any], opened: "Ledger") -> dict[str, Any]:
    claims = statement["predicate"]
    sequence = claims["ledger"]["sequence"]
    purge = _purge_of(opened, sequence)
    return {
        "sequence": sequence,
        "model": claims["model"]["id"],
        "kind": "retrain" if claims["method"]["name"] == "retrain" else "erase",
        "rows": claims["erasure"]["rows"],
        "left": claims["dataset"]["liveAfter"],
        "guarantee": claims["guarantee"],
        "certified_at": claims["times"]["certifiedAt"],
        "purged": purge != _NOT_YET,
        "purge": purge,
    }


def _say_chain(links: list[dict[str, Any]], reason: str | None) -> None:
    lines = [
        (
            str(link["sequence"]),
            link["model"],
            link["kind"],
            f"{link['rows']:,}",
            f"{link['left']:,}",
            guarantee_text(link["guarantee"]),
            link["certified_at"][:10],
            {_NOT_YET: "no", "attested": "yes"}.get(link["purge"], "not fully searched"),
        )
        for link in links
    ]
    columns = ("no.", "model", "kind", "rows", "left", "guarantee", "certified", "purged")
    say_table(False, (), columns, lines, empty="no certificate yet", folds="guarantee")
    if reason is not None:
        typer.echo(f"the chain does NOT hold: {reason}")
    elif lines:
        typer.echo(f"{len(lines)} in one chain; signatures, schemas and links hold")
