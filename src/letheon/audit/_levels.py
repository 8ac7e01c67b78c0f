"""Checks of recorded requests (V1), data (V2), residue (V3), model bytes (V4) and canaries (V6).

V4 also checks what the log fixed before the erasure requests were known: the settings and the seed
(`letheon.audit._registration`).

V6: the auditor draws canary rows from one pool and splits them at random. One half is used for
training and then erased; the other half is never used. If the model forgot, the split is still
random, so the ranks of the model's scores are exchangeable. The test shows nothing if the operator
recognises the canaries.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from math import comb
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from letheon import state
from letheon.audit._bundle import AuditedModel, Bundle, LevelResult, LogFacts
from letheon.audit._predictor import has_same_environment
from letheon.audit._rederive import check_file_content, check_rederivation
from letheon.audit._registration import find_seed_error, find_settings_error, has_fixed_settings
from letheon.exceptions import SignerRefusedError, UntrustedClassError
from letheon.ledger.certificates.claims import RETRAIN, make_claim, reject_beyond_method
from letheon.ledger.certificates.facts import (
    method_parameters,
    reject_false_claims,
    replay_of,
)
from letheon.ledger.models.commitment import build_tree
from letheon.ledger.purge.scan import Markers, scan_files
from letheon.ledger.requests.states import STATES

# States of verified requests that are not applied to the model yet.
_WAITING = frozenset({"verified", "queued", "applying", "retry_wait"})
_DAY = 86_400
Stores = Mapping[str, str | Path] | Iterable[tuple[str, str | Path]]
_SHOWN = 3
_PERMUTATIONS = 20_000
_BLOCKS = 20
_FEWEST = 5


@dataclass
class _RequestHistory:
    """The state and deadline of one request, from its events."""

    state: str = ""
    due: date = date.max
    paused_at: int | None = None
    paused: int = 0
    is_published: bool = False

    def apply_event(self, event: dict[str, Any]) -> None:
        kind, at = event["kind"], int(event["at"])
        if "due" in event:
            self.due = date.fromisoformat(event["due"])
        if kind == "identity-asked":
            self.paused_at = at
        if kind == "verified" and self.paused_at is not None:
            self.paused += at - self.paused_at
            self.paused_at = None
        if kind in STATES:
            self.state = kind
        self.is_published = self.is_published or kind == "applied"

    def is_late(self, today: date) -> bool:
        waits = self.state in _WAITING or (self.state == "stuck" and not self.is_published)
        return waits and self._is_past(today)

    def is_unverified(self, today: date) -> bool:
        """Return whether the deadline passed before the identity was verified."""
        return self.state == "received" and self.paused_at is None and self._is_past(today)

    def _is_past(self, today: date) -> bool:
        # Time on hold does not count; one more day allows for time zones.
        allowance = timedelta(days=1 + -(-self.paused // _DAY))
        return today - allowance > self.due


def check_requests(bundle: Bundle, models: Collection[int] | None = None) -> LevelResult | None:
    """Check that recorded requests were handled in time.

    The verdict is "fail" if a request was verified, is past its deadline and is neither erased nor
    rejected nor on hold. Requests that were never recorded are not covered.

    Parameters
    ----------
    bundle : Bundle
        The bundle.
    models : collection of int, optional
        Numbers of models, as in events; by default, requests to all models count.

    Returns
    -------
    LevelResult or None
        None if the log has no events of requests.

    Examples
    --------
    >>> check_requests(Bundle(Path("exported"), "00" * 32)) is None
    True
    """
    histories: dict[str, _RequestHistory] = {}
    others: set[str] = set()
    last = 0
    for event in bundle.read_events():
        last = max(last, int(event["at"]))
        if "request" not in event:
            continue
        name = str(event["request"])
        if models is not None and event["kind"] == "received" and event["model"] not in models:
            others.add(name)
        if name not in others:
            histories.setdefault(name, _RequestHistory()).apply_event(event)
    if not histories:
        return None
    today = datetime.fromtimestamp(last, UTC).date()
    late = sum(history.is_late(today) for history in histories.values())
    states = Counter(history.state for history in histories.values())
    details = {"requests": dict(sorted(states.items()))}
    if late:
        reason = f"recorded requests that are past the deadline and were not applied: {late}"
        return LevelResult("V1", "", "fail", reason, details)
    reason = f"recorded requests: {len(histories)}; no verified request is past its deadline"
    unverified = sum(history.is_unverified(today) for history in histories.values())
    if unverified:
        reason += f" (unverified and past the deadline: {unverified})"
    return LevelResult("V1", "", "pass", reason, details)


def check_residue(stores: Stores, markers: Any) -> LevelResult:
    """Search stores for markers of erased people.

    Parameters
    ----------
    stores : mapping or pairs of name and path
        Files and folders to search; folders are searched with their subfolders, archives are
        opened.
    markers : Markers, or iterable of bytes, str or int
        Ids or rows that must not occur, raw or in any of the usual encodings.

    Returns
    -------
    LevelResult
        "fail" if a marker was found; the details name the store, the file and the offset, never the
        marker. "skipped" if the search is not conclusive: a file is unreadable, or contains a value
        that equals a short id and may be something else.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "rows.csv").write_text("name,age")
    ...     result = check_residue({"rows": folder}, ["a-forgotten-person"])
    >>> result.level, result.verdict
    ('V3', 'pass')
    """
    pairs = stores.items() if isinstance(stores, Mapping) else stores
    places = [(name, Path(path)) for name, path in pairs]
    if not places or markers is None:
        return LevelResult("V3", "", "skipped", "a search needs both stores and markers")
    searched = _as_markers(markers)
    if len(searched) == 0 and not searched.ids:
        reason = "no marker is long enough for a reliable search"
        return LevelResult("V3", "", "skipped", reason)
    result = scan_files(places, searched)
    details = {
        "files": result.files,
        "bytes": result.bytes,
        "hits": [[hit.store, hit.file, hit.offset] for hit in result.hits],
        "unread": [list(map(str, entry)) for entry in result.unread],
        "not_searched": [list(map(str, entry)) for entry in result.not_searched],
    }
    if result.hits:
        shown = ", ".join(f"{hit.store}: {hit.file!r}" for hit in result.hits[:_SHOWN])
        reason = f"erased data was found (places: {len(result.hits)}): {shown}"
        return LevelResult("V3", "", "fail", reason, details)
    missing = [name for name, path in places if not path.exists()]
    if result.unread or missing:
        reason = f"places or files that could not be read: {len(result.unread) + len(missing)}"
        return LevelResult("V3", "", "skipped", reason, details)
    if result.n_not_searched:
        files = result.not_searched[:_SHOWN]
        shown = ", ".join(f"{entry.file!r} ({entry.reason})" for entry in files)
        reason = f"nothing was found; files not searched: {result.n_not_searched}, such as {shown}"
        return LevelResult("V3", "", "skipped", reason, details)
    reason = (
        f"nothing was found; places: {len(places)}, files: {result.files}, bytes: {result.bytes}"
    )
    return LevelResult("V3", "", "pass", reason, details)


def _as_markers(markers: Any) -> Markers:
    if isinstance(markers, Markers):
        return markers
    values = [markers] if isinstance(markers, str | bytes) else list(markers)
    ids: list[int | str] = []
    rows: list[bytes] = []
    for number, marker in enumerate(values):
        if isinstance(marker, bytes) and Markers.from_values(rows=[marker]).rows:
            rows.append(marker)
        elif isinstance(marker, bytes):
            ids.append(_decode_marker(number, marker))
        elif isinstance(marker, str | Integral):
            ids.append(marker if isinstance(marker, str) else int(marker))
        else:
            kind = type(marker).__name__
            raise TypeError(f"markers[{number}] is a {kind}; expected ids (str, int) or bytes")
    return Markers.from_values(ids=ids, rows=rows)


def _decode_marker(number: int, marker: bytes) -> str:
    """Return as text a marker whose bytes are too short or too uniform for a byte search.

    Raise `ValueError` if the bytes are not UTF-8.
    """
    try:
        return marker.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"markers[{number}] ({len(marker)} bytes) would match many files by chance; give at "
            f"least 16 bytes with 8 different values, or the id as a str or int"
        ) from error


def rebuild_model(audited: AuditedModel, level: str, trusted: Iterable[Any] = ()) -> Any:
    """Return the model built from its file, or a `LevelResult` if it cannot be built.

    The SHA-256 of the file must be the one in the newest certificate.
    """
    if not audited.is_subject:
        reason = f"the file is not the one named in certificate {audited.newest.sequence}"
        return LevelResult(level, audited.name, "fail", reason)
    try:
        return audited.build_model(trusted)
    except UntrustedClassError as error:
        reason = f"the model uses classes that are not in `trusted`: {error}"
        return LevelResult(level, audited.name, "skipped", reason)
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        reason = f"the file does not contain a readable model: {type(error).__name__}"
        return LevelResult(level, audited.name, "fail", reason)


def check_data(audited: AuditedModel) -> LevelResult:
    """Return the result of V2: the rows in the bundle are those that the certificate commits to.

    The hash tree over rows and salts must have the root that the certificate states.
    """
    data = audited.newest.predicate["dataset"]
    fail = partial(LevelResult, "V2", audited.name, "fail")
    try:
        rows = audited.rows
        root = build_tree(rows, audited.vault, data["slots"]).root.hex()
        # A table must not contain categories of removed rows.
        is_tidy = state.encode(rows.take(np.arange(len(rows)))) == state.encode(rows)
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        return fail(f"rows and salts are not valid: {error}"[:300])
    if root != data["rootAfter"]:
        return fail("the rows in the bundle do not match the commitment in the certificate")
    if not is_tidy:
        return fail("the table contains more than its rows: categories or values that no row has")
    n_rows = len(audited.rows)
    if n_rows != data["liveAfter"]:
        return fail(f"the bundle has {n_rows} rows, the certificate says {data['liveAfter']}")
    reason = f"the {n_rows} rows in the bundle match the commitment in the certificate"
    return LevelResult("V2", audited.name, "pass", reason, {"rows": n_rows})


def check_model(log: LogFacts, audited: AuditedModel, model: Any) -> tuple[LevelResult, Any]:
    """Return the result of V4, and the re-derived model (None if there is none).

    Settings and seed must agree with the certificates, and the bytes with a fresh fit on the
    remaining rows.
    """
    name = audited.name
    wrong = find_claim_mismatch(log, audited, model) or find_seed_error(log, audited, model)
    if wrong:
        return LevelResult("V4", name, "fail", wrong), None
    content, same_place = audited.content, has_same_environment(audited)
    if model.guarantee_.kind != "exact":
        findings = check_file_content(model, audited.rows, content=content, same_place=same_place)
        if findings.wrong:
            return LevelResult("V4", name, "fail", findings.wrong), None
        reason = findings.undecided or (
            "the method uses secret noise or is approximate, so two fits are never equal; the file "
            "contains the remaining rows, the numbers of a fit on them, and nothing else"
        )
        return LevelResult("V4", name, "skipped", reason), None
    verdict, rederived = check_rederivation(
        model, audited.rows, content=content, name=name, same_place=same_place
    )
    details = dict(verdict.details)
    if unused := log.unused_training_keys:
        details["unusedTrainingKeys"] = unused
    if not has_fixed_settings(log, audited):
        details["settings"] = "not fixed before the first removal"
    return replace(verdict, details=details), rederived


def find_claim_mismatch(log: LogFacts, audited: AuditedModel, model: Any) -> str | None:
    """Return how a model differs from its registration or certificates, or None.

    The settings must agree with the registration and with every certificate. Settings that were
    fixed before the first request cannot contain data of an erased row.
    """
    if wrong := find_settings_error(log, audited, model):
        return wrong
    for certificate in audited.certificates:
        method = certificate.predicate["method"]
        try:
            expected = method_parameters(model, method["name"])
        except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
            return f"the settings of the model cannot be read: {type(error).__name__}"
        if method["parameters"] != expected:
            return f"the settings of the model differ from certificate {certificate.sequence}"
    try:
        for certificate in audited.certificates:
            reject_beyond_method(model, certificate.predicate)
        reject_false_claims(model, audited.newest.predicate)
    except SignerRefusedError as error:
        return f"the certificate claims more than the model permits: {error}"
    return _find_weaker_claim(model, audited.newest.predicate)


def _find_weaker_claim(model: Any, claims: Mapping[str, Any]) -> str | None:
    """Return how the claim of a certificate differs from what the model gives, or None.

    A weaker claim must fail because the claim selects the levels: an exact model that is declared
    empirical would not be compared with a fresh fit.
    """
    is_retrain = claims["method"]["name"] == RETRAIN
    kind = make_claim(model, RETRAIN if is_retrain else "erase").guarantee.kind
    stated = {"kind": claims["guarantee"]["kind"], "replay": claims["execution"]["replay"]}
    for name, value in {"kind": kind, "replay": replay_of(model)}.items():
        if stated[name] != value:
            return f"the certificate states {name} {stated[name]}, and the model has {value}"
    return None


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canary rows: one half was trained on and then erased, the other half was never used.

    Parameters
    ----------
    X_erased, y_erased : array-like
        Rows and labels of the erased canaries. Random labels work best, because a model can only
        memorise them.
    X_unseen, y_unseen : array-like
        Rows and labels of the unused canaries, from the same pool.
    level : float, default=0.01
        Significance level: the probability that a model fails although it forgot the canaries.

    Raises
    ------
    ValueError
        `level` is not between 0 and 1.

    Examples
    --------
    >>> canaries = Canaries([[0.0], [1.0]], [0, 1], [[2.0], [3.0]], [1, 0], level=0.05)
    >>> canaries.level
    0.05
    """

    X_erased: Any
    y_erased: Any
    X_unseen: Any
    y_unseen: Any
    level: float = 0.01

    def __post_init__(self) -> None:
        """Raise `ValueError` unless 0 < level < 1."""
        if not 0 < self.level < 1:
            raise ValueError(f"level={self.level!r} is not a probability: expected 0 < level < 1")


def check_canaries(model: Any, canaries: Canaries, name: str = "") -> LevelResult:
    """Test whether the model treats erased canaries like unseen ones.

    Parameters
    ----------
    model : fitted estimator
        The model under audit; only its predictions are used.
    canaries : Canaries
        The canary rows.
    name : str
        Name of the model, for the result.

    Returns
    -------
    LevelResult
        "fail" if the p-value of the rank sum of the erased canaries' scores is below the level
        (one-sided permutation test, exact even with ties). "skipped" if there are too few canaries
        for the level, or if none of their labels is a class of the model.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(80, 2)), rng.integers(0, 2, 80)
    >>> model = GaussianNB().fit(X[:40], y[:40])
    >>> check_canaries(model, Canaries(X[40:60], y[40:60], X[60:], y[60:])).verdict
    'pass'
    """
    unknown = _unknown_labels(model, canaries)
    if unknown == 1.0:
        reason = "no canary label is a class of the model; give the labels used in training"
        return LevelResult("V6", name, "skipped", reason)
    erased = own_label_scores(model, canaries.X_erased, canaries.y_erased)
    unseen = own_label_scores(model, canaries.X_unseen, canaries.y_unseen)
    fewest = min(len(erased), len(unseen))
    # This is the smallest possible p-value; with a lower level the test could never fail.
    least = max(1 / comb(len(erased) + len(unseen), len(erased)), 1 / (1 + _PERMUTATIONS))
    if fewest < _FEWEST or least >= canaries.level:
        reason = f"{fewest} canaries are too few; use {_FEWEST} or more of each kind"
        return LevelResult("V6", name, "skipped", f"{reason}, and more for a lower level")
    p_value = rank_p_value(erased, unseen)
    advantage = float((erased[:, None] > unseen).mean() + 0.5 * (erased[:, None] == unseen).mean())
    details = {
        "p": f"{p_value:.4g}",
        "auc": f"{advantage:.3f}",
        "level": canaries.level,
        "erased": len(erased),
        "unseen": len(unseen),
        "unknownLabels": f"{unknown:.0%}",
    }
    if p_value < canaries.level:
        reason = f"erased canaries score higher than unseen ones (p = {p_value:.2g})"
        return LevelResult("V6", name, "fail", reason, details)
    reason = f"erased canaries score like unseen ones (p = {p_value:.2g})"
    return LevelResult("V6", name, "pass", reason, details)


def _unknown_labels(model: Any, canaries: Canaries) -> float:
    """Return the share of canaries whose label is not a class of the model."""
    if not hasattr(model, "predict_proba"):
        return 0.0
    known = set(np.asarray(model.classes_).tolist())
    labels = [*np.asarray(canaries.y_erased).tolist(), *np.asarray(canaries.y_unseen).tolist()]
    return sum(label not in known for label in labels) / max(len(labels), 1)


def own_label_scores(model: Any, X: Any, y: Any) -> NDArray[np.float64]:
    """Return the model's score of the true label of each row; higher means more confident."""
    labels = np.asarray(y)
    if hasattr(model, "predict_proba"):
        shares = np.asarray(model.predict_proba(X), np.float64)
        place = {label: number for number, label in enumerate(np.asarray(model.classes_).tolist())}
        columns = np.array([place.get(label, -1) for label in labels.tolist()], int)
        return np.where(columns < 0, 0.0, shares[np.arange(len(labels)), columns])
    predicted = np.asarray(model.predict(X))
    if predicted.dtype.kind == "f" and labels.dtype.kind in "fiu":
        return np.asarray(-np.abs(predicted - labels.astype(np.float64)), np.float64)
    return np.asarray(predicted == labels, np.float64)


def rank_p_value(high: NDArray[np.float64], low: NDArray[np.float64]) -> float:
    """Return the one-sided p-value of a permutation test on ranks.

    A small value means that the scores in `high` are larger than those in `low`.
    """
    ranks = rankdata(np.concatenate([high, low]))
    observed = ranks[: len(high)].sum()
    rng, reached = np.random.default_rng(0), 0
    block = np.tile(ranks, (_PERMUTATIONS // _BLOCKS, 1))
    for _ in range(_BLOCKS):
        sums = rng.permuted(block, axis=1)[:, : len(high)].sum(axis=1)
        reached += int((sums >= observed - 1e-9).sum())
    return (1 + reached) / (1 + _PERMUTATIONS)
