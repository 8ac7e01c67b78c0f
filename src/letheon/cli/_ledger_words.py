"""What certificates and attestations say, in lines for people."""

from collections.abc import Iterator
from typing import Any

from letheon.verifier import PURGE, UNLEARNING, Refused, search_gaps

__all__ = ["guarantee_text", "summary"]


# A figure is called what it is: a proof or an estimate is no measurement.
_BASIS = {"by-proof": "by proof", "proxy-estimate": "estimated"}


def guarantee_text(guarantee: dict[str, Any]) -> str:
    """Return kind and bound of a guarantee."""
    if "epsilon" not in guarantee:
        return str(guarantee["kind"])
    return f"{guarantee['kind']} ({guarantee['epsilon']}, {guarantee['delta']})"


def summary(statement: dict[str, Any], identity: str, purge: str | None) -> list[tuple[str, str]]:
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
        return list(_certificate(statement, identity, purge))
    if kind == PURGE:
        return list(_attestation(statement["predicate"], identity))
    raise Refused("it is neither a certificate nor the attestation of a purge")


def _certificate(
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
    yield "guarantee", f"{guarantee_text(guarantee)}; {covers}"
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


def _attestation(claims: dict[str, Any], identity: str) -> Iterator[tuple[str, str]]:
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
