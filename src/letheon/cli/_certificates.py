"""`letheon cert`: read and verify certificates."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from letheon.cli._command import (
    FAILED,
    Answer,
    Facts,
    Home,
    Listing,
    UsageError,
    argument,
    flag,
    ledger_command,
    make_group,
    open_ledger,
    read_public_key,
    require_folder,
    value,
)
from letheon.exceptions import LedgerMissingError
from letheon.verifier import (
    PURGE,
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

__all__ = ["certs", "read_statements"]

certs = make_group("cert", "Certificates of unlearning.")

Certificate = Annotated[str, argument("CERTIFICATE", "Its number in the ledger, or its file.")]
Key = Annotated[
    str | None,
    value(
        "KEY",
        "First public key of the ledger: 64 hexadecimal digits, or a file of them.",
        show_default="that of the ledger, for a number",
    ),
]
Purge = Annotated[bool, flag("--purge", "The attestation of the purge that followed it.")]


_LONGEST_NUMBER = 15
_NOT_YET = "not yet"
# A figure is called what it is: a proof or an estimate is no measurement.
_BASIS = {"by-proof": "by proof", "proxy-estimate": "estimated"}


@dataclass(frozen=True)
class _Envelope:
    """An envelope, where keys that may have signed it stand, and what became of the purge."""

    data: bytes
    statements: list[bytes]
    pinned: str | None
    purge: str | None


def read_statements(folder: Path) -> list[bytes]:
    """Return the rotations and revocations of a folder; they prove themselves."""
    return [read_capped(path, SMALL) for path in sorted(folder.glob("[0-9]*.json"))]


def _find(word: str, folder: Path | None, *, purge: bool) -> _Envelope:
    path = Path(word)
    if path.is_file():
        home = path.absolute().parent.parent
        beside = [*read_statements(home / "keys"), *read_statements(home / "public" / "keys")]
        return _Envelope(read_capped(path, SMALL), beside, None, None)
    if not (word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER):
        raise FileNotFoundError(f"there is no file {word}, and it is no number of a certificate")
    with open_ledger(folder) as opened:
        sequence, known = int(word), read_statements(opened.folder / "public" / "keys")
        data = (
            opened.certificates.purge_attestation(sequence)
            if purge
            else opened.certificates.envelope(sequence)
        )
        return _Envelope(data, known, opened.public_key, _purge_of(opened, sequence))


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


@ledger_command(certs, "show", opens=False)
def show(certificate: Certificate, purge: Purge = False, ledger: Home = None) -> Answer:
    """Show what a certificate says, and what it does not claim; a file is read unverified.

    Example: letheon cert show 3
    """
    found = _find(certificate, ledger, purge=purge)
    statement, identity = _statement(found.data), certificate_id(found.data)
    purged = None if found.purge is None else found.purge != _NOT_YET
    document = {"id": identity, "purged": purged, "purge": found.purge, "statement": statement}
    return Answer(document, Facts(list(_describe(statement, identity, found.purge))))


@ledger_command(certs, "verify", opens=False)
def verify(
    certificate: Certificate,
    key: Key = None,
    keys: Annotated[
        Path | None,
        value(
            "DIR",
            "Folder with the ledger's key rotations and revocations.",
            show_default="beside the file's folder",
        ),
    ] = None,
    purge: Purge = False,
    ledger: Home = None,
) -> Answer:
    """Verify signature, schema and key of one certificate; exit status 1 if one does not hold.

    Its place in the chain, and whether the work was done: letheon audit report.

    Example: letheon cert verify bundle/certificates/000003.json --key ledger.pub
    """
    found = _find(certificate, ledger, purge=purge)
    pinned = found.pinned if key is None else read_public_key(key)
    if pinned is None:
        raise UsageError("a file is verified with --key KEY, from a source that you trust")
    beside = found.statements if keys is None else read_statements(require_folder(keys))
    try:
        opened = open_envelope(found.data, Trust.from_pinned(pinned, beside))
    except Refused as error:
        document = {"verified": False, "reason": str(error), "key": pinned}
        return Answer(document, f"does NOT hold: {error}", status=FAILED)
    is_certificate = opened.statement["predicateType"] == UNLEARNING
    document = {
        "verified": True,
        "kind": "certificate" if is_certificate else "attestation",
        "id": opened.id,
        "key": pinned,
        "sequence": opened.sequence,
        "ledger": opened.predicate["ledger"]["id"],
    }
    text = (
        f"{document['kind']} {opened.sequence} of ledger {document['ledger']} holds: "
        f"signature, schema, key\nid {opened.id}"
    )
    return Answer(document, text)


@ledger_command(certs, "chain")
def chain(opened: "Ledger", key: Key = None) -> Answer:
    """List all certificates and verify that they are one chain; exit status 1 if they are not.

    Example: letheon cert chain
    """
    envelopes = [opened.certificates.envelope(number) for number in opened.certificates.sequences()]
    links = [_link(_statement(data), opened) for data in envelopes]
    pinned = opened.public_key if key is None else read_public_key(key)
    reason = None
    try:
        known = read_statements(opened.folder / "public" / "keys")
        check_chain(envelopes, Trust.from_pinned(pinned, known))
    except Refused as error:
        reason = str(error)
    document = {"verified": reason is None, "reason": reason, "certificates": links}
    parts = [_chain_listing(links)]
    if reason is not None:
        return Answer(document, *parts, f"the chain does NOT hold: {reason}", status=FAILED)
    held = [f"{len(links)} in one chain; signatures, schemas and links hold"] if links else []
    return Answer(document, *parts, *held)


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


def _chain_listing(links: list[dict[str, Any]]) -> Listing:
    rows = [
        (
            link["sequence"],
            link["model"],
            link["kind"],
            f"{link['rows']:,}",
            f"{link['left']:,}",
            _guarantee_text(link["guarantee"]),
            link["certified_at"][:10],
            {_NOT_YET: "no", "attested": "yes"}.get(link["purge"], "not fully searched"),
        )
        for link in links
    ]
    columns = ("no.", "model", "kind", "rows", "left", "guarantee", "certified", "purged")
    return Listing(columns, rows, empty="no certificate yet", folds="guarantee")


def _guarantee_text(guarantee: dict[str, Any]) -> str:
    """Return kind and bound of a guarantee."""
    if "epsilon" not in guarantee:
        return str(guarantee["kind"])
    return f"{guarantee['kind']} ({guarantee['epsilon']}, {guarantee['delta']})"


def _describe(
    statement: dict[str, Any], identity: str, purge: str | None
) -> Iterator[tuple[str, str]]:
    """Return the lines of a certificate or of the attestation of a purge.

    Parameters
    ----------
    statement : dict
        As the schema asks for.
    identity : str
        SHA-256 of what was signed.
    purge : str or None
        What became of the purge, in words; None if that is not known.
    """
    kind = statement["predicateType"]
    if kind == UNLEARNING:
        return _certificate_facts(statement, identity, purge)
    if kind == PURGE:
        return _attestation_facts(statement["predicate"], identity)
    raise Refused("it is neither a certificate nor the attestation of a purge")


def _certificate_facts(
    statement: dict[str, Any], identity: str, purge: str | None
) -> Iterator[tuple[str, str]]:
    claims = statement["predicate"]
    data, method, times = claims["dataset"], claims["method"], claims["times"]
    rows, guarantee = claims["erasure"]["rows"], claims["guarantee"]
    yield "certificate", f"{claims['ledger']['sequence']} of ledger {claims['ledger']['id']}"
    yield "id", identity
    yield "model", str(claims["model"]["id"])
    yield "its sha256", str(statement["subject"][0]["digest"]["sha256"])
    yield "erased", f"{rows:,} rows of data set {data['id']}; {data['liveAfter']:,} are left"
    yield "grounds", ", ".join(claims["erasure"]["grounds"])
    yield "method", f"{method['name']} {method['version']}, replay {claims['execution']['replay']}"
    covers = f"{guarantee['requests']} requests, releases {guarantee['releases']}"
    yield "guarantee", f"{_guarantee_text(guarantee)}; {covers}"
    if guarantee.get("assumptions"):
        yield "assumes", ", ".join(guarantee["assumptions"])
    yield "account", _account(guarantee["accounting"])
    for name in ("efficiency", "effectiveness", "consistency", "certifiability"):
        figure = claims["measurements"][name]
        yield _BASIS.get(figure["basis"], "measured"), f"{name}: {_figure(figure)}"
    yield "monitor", str(claims["monitor"]["decision"])
    yield "received", f"from {times['oldestReceivedOn']} on, first due on {times['earliestDueOn']}"
    yield "applied", f"{times['appliedAt']}, certified {times['certifiedAt']}"
    if purge is not None:
        yield "purged", purge
    yield "not claimed", ", ".join(claims["notClaimed"])


def _account(account: dict[str, Any]) -> str:
    rows = f"{account['deletionsSinceRetrain']:,} rows since the last retrain"
    if "budget" not in account:
        return rows
    if "spent" not in account:
        return f"within its budget of {account['budget']}; {rows}"
    return f"{account['spent']} of {account['budget']} spent; {rows}"


def _figure(figure: dict[str, Any]) -> str:
    if figure["metric"] == "not-measured":
        return "not measured"
    return f"{figure['metric']} {figure['value']}, {figure['basis']}"


def _attestation_facts(claims: dict[str, Any], identity: str) -> Iterator[tuple[str, str]]:
    scanner, times = claims["scanner"], claims["times"]
    yield "purge", f"of certificate {claims['ledger']['sequence']}, ledger {claims['ledger']['id']}"
    yield "id", identity
    yield "certificate", str(claims["certificate"]["sha256"])
    for store in claims["stores"]:
        end = f"by {store['by']}" if store["state"] == "expires" else f"at {store['at']}"
        if "notSearched" in store:
            end += f", files not searched: {store['notSearched']:,}"
        yield "store", f"{store['store']} ({store['scope']}): {store['state']} {end}"
    yield "salts", f"{claims['salts']['destroyed']:,} destroyed"
    looked = f"{scanner['markers']:,} markers in {scanner['files']:,} files"
    yield "scanner", f"{looked} ({scanner['bytes']:,} bytes), {scanner['hits']} found"
    if gaps := search_gaps(claims):
        yield "not searched", gaps
    yield "recipients", f"{claims['recipientsTold']} told"
    yield "times", f"{times['startedAt']} to {times['purgedAt']}"
    yield "not claimed", ", ".join(claims["notClaimed"])
