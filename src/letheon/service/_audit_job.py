"""An audit asked for at the desk: a bundle, the public key, and a process that has nothing else.

Certificates, log and requests are one chain for all tenants. Whoever asks for a tenant is told of
the whole whether it holds, and of requests and models only what is the tenant's.

A *drill* changes one byte of the copy first. Then the audit must fail; one that passes would be
worth nothing. The ledger itself is never touched.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from letheon.audit import AuditReport, Bundle, LevelResult, audit, check_requests, key_text
from letheon.verifier import overall

__all__ = [
    "DRILLS",
    "AuditOrder",
    "Drill",
    "NothingToTamperError",
    "concerns",
    "damaged",
    "levels_for",
    "look",
    "tamper",
    "to_result",
    "verdict_of",
]

Drill = Literal["none", "model", "certificate", "log"]
DRILLS: tuple[Drill, ...] = get_args(Drill)

# What has to be looked at so that a change is noticed.
_NOTICED_BY: dict[str, tuple[str, ...]] = {
    "none": (),
    "model": ("V0", "V2", "V4", "V5"),
    "certificate": ("V0",),
    "log": ("V0", "V1"),
}
# What an untrusted model raised may quote rows.
_QUOTES = re.compile(r"(it could not be looked at: \w+):.*", re.DOTALL)
_LONGEST_REASON = 600
_ROOT = b'"root":"'
# What a tenant is told of everybody's things: counts in other reasons would be of other tenants.
_OF_THE_WHOLE = {
    "pass": "of the whole ledger: it holds",
    "fail": "of the whole ledger: it does not hold; ask the operator of the desk",
    "skipped": "of the whole ledger: it was not looked at",
}


class NothingToTamperError(Exception):
    """The bundle has no file of the kind that a drill would change."""


@dataclass(frozen=True)
class AuditOrder:
    """What the process is given: a folder, a key to hold against it, what to look at.

    `tenant` is who is told, None for somebody who sees everything; `models` are the numbers of the
    tenant's models in the events of requests.
    """

    bundle: str
    key: str
    levels: tuple[str, ...] | None
    model: str | None
    trusted: tuple[str, ...]
    tenant: str | None = None
    models: tuple[int, ...] = ()


def levels_for(asked: Iterable[str] | None, drill: str) -> tuple[str, ...] | None:
    """Return the levels to look at; None for all. A drill adds those that must notice it."""
    if not asked:
        return None
    return tuple(sorted({*asked, *_NOTICED_BY[drill]}))


def look(
    order: AuditOrder, tell: Callable[[Any], None], *, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Audit a bundle; tell every result as it comes, and return the report."""

    def told(result: LevelResult) -> None:
        for one in _told(order, [result]):
            tell(one)

    report = audit(
        order.bundle,
        key=order.key,
        levels=order.levels,
        model=order.model,
        trusted=order.trusted,
        progress=told,
        stop=stop,
    )
    return _plain_report(report) | {"levels": _told(order, report)}


def _told(order: AuditOrder, results: Iterable[LevelResult]) -> list[dict[str, Any]]:
    shown = (_for_tenant(order, result) for result in results)
    return [_plain(result) for result in shown if result is not None]


def _for_tenant(order: AuditOrder, result: LevelResult) -> LevelResult | None:
    """Return a result as the one who asked may see it; None if it is about others only."""
    if order.tenant is None:
        return result
    if result.model:
        return result if concerns(order.tenant, result.model) else None
    if "requests" in result.details:
        bundle = Bundle(Path(order.bundle), key_text(order.key))
        return check_requests(bundle, order.models)
    words = _OF_THE_WHOLE[result.verdict]
    return LevelResult(result.level, "", result.verdict, words, promised=result.promised)


def _plain_report(report: AuditReport) -> dict[str, Any]:
    return {
        "ledger": report.ledger,
        "key": report.key,
        "audited_at": report.audited_at,
        "scope": report.scope,
        "levels": [_plain(result) for result in report],
        "subjects": [json.loads(json.dumps(dict(one), default=str)) for one in report.subjects],
    }


def _plain(result: LevelResult) -> dict[str, Any]:
    reason = _QUOTES.sub(r"\1", result.reason)[:_LONGEST_REASON]
    found = {**result.to_dict(), "reason": reason}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def concerns(tenant: str | None, model: str) -> bool:
    """Whether what is said about a model, as certificates name it, is for somebody of a tenant.

    What is said about the whole ledger (no model) is for everybody, in the words of `look`.
    """
    if tenant is None or model == "":
        return True
    owner, slash, _ = model.partition("/")
    return (owner if slash else "default") == tenant


def to_result(report: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    """Return what is kept of a report: what somebody of a tenant may see, and the verdict."""
    levels = [one for one in report["levels"] if concerns(tenant, one["model"])]
    subjects = [one for one in report["subjects"] if concerns(tenant, one["model"])]
    verdict = verdict_of(levels)
    if tenant is not None and not subjects and verdict == "passed":
        # The whole ledger holds, and no certificate is the tenant's: nothing of theirs was shown.
        verdict = "incomplete"
    found = {"levels": levels, "subjects": subjects}
    return {**report, **found, "verdict": verdict, "passed": verdict == "passed"}


def verdict_of(levels: Iterable[Mapping[str, Any]]) -> str:
    """Return the verdict of the levels of a report, as plain values; older ones promise all."""
    words = {"pass": True, "fail": False, "skipped": None}
    return overall((words[one["verdict"]], one.get("promised", True)) for one in levels)


def damaged(ledger: str, key: str, model: str, audited_at: str) -> dict[str, Any]:
    """Return the report on a ledger that cannot hand out its own files as it signed them."""
    reason = "the ledger cannot hand out a file as it signed it: it is damaged or missing"
    result = LevelResult("V4", model, "fail", reason)
    return _plain_report(AuditReport((result,), ledger, key, audited_at=audited_at))


def tamper(bundle: Path, drill: str) -> str:
    """Change one byte of a bundle, and return what was changed, in words.

    Raises
    ------
    NothingToTamperError
        There is no such file in the bundle.
    """
    described = json.loads((bundle / "bundle.json").read_bytes())["models"]
    if drill == "log":
        _flip(bundle / "log.json", _ROOT)
        return "one byte of log.json, in the root of its tree"  # its size tells of other tenants
    if not described:
        raise NothingToTamperError
    newest = max(described, key=lambda one: int(one["sequence"]))
    if drill == "certificate":
        number = int(newest["sequence"])
        place = _flip(bundle / "certificates" / f"{number:06d}.json")
        return f"one byte of certificate {number}, {place}"
    path = bundle / "models" / newest["tenant"] / newest["name"] / "model.blob"
    return f"one byte of the model file of {newest['name']}, {_flip(path)}"


def _flip(path: Path, after: bytes = b"") -> str:
    data = bytearray(path.read_bytes())
    place = data.index(after) + len(after) if after else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)
    return f"number {place} of {len(data)}"
