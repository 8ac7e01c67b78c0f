"""The levels V1 on recorded requests, V2 on data, V3 on places to search, V4 on bytes, V6.

V4 also asks whether the seed was settled before anybody knew who would leave:
``seed = HKDF-SHA256(key, beacon)``. The commitment to the key stands in the log, and the first
checkpoint after it is the beacon, so that no seed could be chosen for the model it gives. The seed
is settled when a model is registered or retrained, and is the same until the next retrain
(`letheon.verifier.check_chain`). The log is believed where V1 holds.

V6: the auditor draws people from one pool, splits them by lot, has one half trained on and then
erased, and keeps the other half away. If the model forgot, the split is still a matter of chance,
so that the ranks of the model's scores are exchangeable. The test says nothing against an operator
who recognises the canaries.
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
from letheon.audit._rederive import beside_the_model, check_rederivation
from letheon.exceptions import SignerRefusedError, UntrustedClassError
from letheon.inner_estimator import fresh_copy
from letheon.ledger.certificates.claims import RETRAIN, claim_of, refuse_beyond_method
from letheon.ledger.certificates.facts import describe, method_parameters, refuse_boasts, replay_of
from letheon.ledger.keys.keyring import commit_to_key, derive_training_seed
from letheon.ledger.models.commitment import tree_of
from letheon.ledger.purge.scan import Markers, scan_files
from letheon.ledger.requests.states import STATES
from letheon.verifier import SignedStatement

_DERIVED = "hkdf-sha256-epoch-v1"
_CALLER = "caller-seed-v1"
_BEACON = "checkpoint:"
# What decides whether bytes must agree here.
_PLACE = ("lockfile", "python", "kernel")
# Verified, and the people are still in the model.
_WAITING = frozenset({"verified", "queued", "applying", "retry_wait"})
_DAY = 86_400
Stores = Mapping[str, str | Path] | Iterable[tuple[str, str | Path]]
_SHOWN = 3
_PERMUTATIONS = 20_000
_BLOCKS = 20
_FEWEST = 5


@dataclass
class _Course:
    """One request, as its events tell it."""

    state: str = ""
    due: date = date.max
    paused_at: int | None = None
    paused: int = 0
    is_published: bool = False

    def follow(self, event: dict[str, Any]) -> None:
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
        """Whether nobody verified it by its day, while its clock ran."""
        return self.state == "received" and self.paused_at is None and self._is_past(today)

    def _is_past(self, today: date) -> bool:
        # A clock that stood gives its time back; a day more is a matter of time zones.
        allowance = timedelta(days=1 + -(-self.paused // _DAY))
        return today - allowance > self.due


def check_requests(bundle: Bundle, models: Collection[int] | None = None) -> LevelResult | None:
    """Say what became of the recorded requests; None where the bundle has no events of them.

    With `models`, numbers of models as events give them, only requests to these are looked at.
    "fail" if one was verified, is past its day and is neither erased nor rejected nor on hold.
    Requests that nobody recorded do not show.
    """
    courses: dict[str, _Course] = {}
    others: set[str] = set()
    last = 0
    for event in bundle.events():
        last = max(last, int(event["at"]))
        if "request" not in event:
            continue
        name = str(event["request"])
        if models is not None and event["kind"] == "received" and event["model"] not in models:
            others.add(name)
        if name not in others:
            courses.setdefault(name, _Course()).follow(event)
    if not courses:
        return None
    today = datetime.fromtimestamp(last, UTC).date()
    late = sum(course.is_late(today) for course in courses.values())
    details = {"requests": dict(sorted(Counter(one.state for one in courses.values()).items()))}
    if late:
        reason = f"{late} recorded request(s) are past their day, and nobody was erased"
        return LevelResult("V1", "", "fail", reason, details)
    reason = f"{len(courses)} recorded request(s); none that was verified waited past its day"
    unverified = sum(course.is_unverified(today) for course in courses.values())
    if unverified:
        reason += f" ({unverified} that nobody verified, past the day)"
    return LevelResult("V1", "", "pass", reason, details)


def check_residue(stores: Stores, markers: Any) -> LevelResult:
    """Search places for markers.

    Parameters
    ----------
    stores : mapping or pairs of name and path
        Where to look; folders are searched whole, archives are opened.
    markers : Markers, or iterable of bytes, str or int
        What must not be found, raw or in any of the usual encodings.

    Returns
    -------
    LevelResult
        "fail" where something was found, with the store, the file and the place, never with what
        was found; "skipped" where a file could not be read or not be searched: of a kind that
        cannot be read, or with a value that may be a short id or not.
    """
    pairs = stores.items() if isinstance(stores, Mapping) else stores
    places = [(name, Path(path)) for name, path in pairs]
    if not places or markers is None:
        return LevelResult("V3", "", "skipped", "stores and markers are both needed to search")
    wanted = _as_markers(markers)
    if len(wanted) == 0 and not wanted.ids:
        reason = "no marker is long enough to mean something where it is found"
        return LevelResult("V3", "", "skipped", reason)
    result = scan_files(places, wanted)
    details = {
        "files": result.files,
        "bytes": result.bytes,
        "hits": [[hit.store, hit.file, hit.offset] for hit in result.hits],
        "unread": [list(map(str, one)) for one in result.unread],
        "not_searched": [list(map(str, one)) for one in result.not_searched],
    }
    if result.hits:
        shown = ", ".join(f"{hit.store}: {hit.file!r}" for hit in result.hits[:_SHOWN])
        reason = f"{len(result.hits)} finding(s) of what should be gone: {shown}"
        return LevelResult("V3", "", "fail", reason, details)
    missing = [name for name, path in places if not path.exists()]
    if result.unread or missing:
        reason = f"{len(result.unread) + len(missing)} place(s) or file(s) could not be read"
        return LevelResult("V3", "", "skipped", reason, details)
    if result.n_not_searched:
        shown = ", ".join(f"{one.file!r} ({one.reason})" for one in result.not_searched[:_SHOWN])
        reason = f"nothing found, but {result.n_not_searched} file(s) were not searched: {shown}"
        return LevelResult("V3", "", "skipped", reason, details)
    reason = f"nothing found in {result.files} files ({result.bytes} bytes) of {len(places)} places"
    return LevelResult("V3", "", "pass", reason, details)


def _as_markers(markers: Any) -> Markers:
    if isinstance(markers, Markers):
        return markers
    given = [markers] if isinstance(markers, str | bytes) else list(markers)
    ids: list[int | str] = []
    rows: list[bytes] = []
    for number, one in enumerate(given):
        if isinstance(one, bytes) and Markers.from_values(rows=[one]).rows:
            rows.append(one)
        elif isinstance(one, bytes):
            ids.append(_decode(number, one))
        elif isinstance(one, str | Integral):
            ids.append(one if isinstance(one, str) else int(one))
        else:
            kind = type(one).__name__
            raise TypeError(f"markers[{number}] is a {kind}; expected ids (str, int) or bytes")
    return Markers.from_values(ids=ids, rows=rows)


def _decode(number: int, marker: bytes) -> str:
    """Return bytes that are too short, or too uniform, for a search for bytes as a text."""
    try:
        return marker.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"markers[{number}] has {len(marker)} bytes that stand in many files by chance; give "
            "at least 16 bytes, 8 of them different, or the id as a str or int"
        ) from error


def wrong_seed(log: LogFacts, audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the seed of a model; None if it is as certified."""
    claimed = audited.newest.predicate["method"]["trainingRandomness"]
    said, retrain = audited.training, _last_retrain(audited)
    if any(said.get(name) != claimed[name] for name in ("rule", "beacon", "keyCommitment")):
        return "training.json says something else about the seed than the certificate"
    if claimed["rule"] == _CALLER:
        return _wrong_choice(audited, str(said["key"]), retrain)
    if claimed["rule"] != _DERIVED:
        return f"the rule {claimed['rule']} for the seed is not known here"
    return _wrong_beacon(log, audited, claimed, retrain) or _wrong_key(
        str(said["key"]), claimed, model
    )


def _wrong_key(key: str, claimed: dict[str, str], model: Any) -> str | None:
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        return "the training key is no hexadecimal text"
    if commit_to_key(secret) != claimed["keyCommitment"]:
        return "the training key is not the one that was committed to"
    beacon = bytes.fromhex(claimed["beacon"].removeprefix(_BEACON))
    if not _has_seed(model, derive_training_seed(secret, beacon)):
        return "the seed is not the one that key and beacon give"
    return None


def _last_retrain(audited: AuditedModel) -> SignedStatement | None:
    """Return the certificate of the newest retrain, which settled the seed, if there is one."""
    names = [one.predicate["method"]["name"] for one in audited.certificates]
    if RETRAIN not in names:
        return None
    return audited.certificates[len(names) - 1 - names[::-1].index(RETRAIN)]


def _wrong_choice(audited: AuditedModel, key: str, retrain: SignedStatement | None) -> str | None:
    if key:
        return "the caller chose the seed, and yet there is a training key"
    if retrain is not None:
        return "the operator chose the seed of a retrain, when it was known who left"
    chosen = "operator-chose-the-seed" in audited.newest.predicate["notClaimed"]
    return None if chosen else "the caller chose the seed, and the certificate hides it"


def _wrong_beacon(
    log: LogFacts, audited: AuditedModel, claimed: dict[str, str], retrain: SignedStatement | None
) -> str | None:
    """Return what is wrong with the commitment or the beacon: there was one of each."""
    wanted = claimed["keyCommitment"]
    first = next((one for one in log.commitments if one.event["training"] == wanted), None)
    if first is None or not _is_intent(log, audited, first.event, retrain):
        return "the commitment to the training key was not logged when this model was to be trained"
    after = [(size, text) for text, size in log.checkpoint_sizes.items() if size > first.place]
    if not after or f"{_BEACON}{min(after)[1]}" != claimed["beacon"]:
        return "the beacon is not the first checkpoint after the commitment to the training key"
    if retrain is not None:
        published = log.published.get(retrain.predicate["erasure"]["batch"], -1)
        if min(after)[0] > published:
            return "the beacon is later than the model that was trained with it"
    return None


def _is_intent(
    log: LogFacts, audited: AuditedModel, event: dict[str, Any], retrain: SignedStatement | None
) -> bool:
    """Whether an event says that this model is to be trained, or retrained."""
    if retrain is not None:
        batch = retrain.predicate["erasure"]["batch"]
        return event.get("kind") == "sealed" and event.get("batch") == batch
    registered = audited.certificates[0].predicate["model"]["before"]["sha256"]
    folders = [one.event.get("model") for one in log.commitments if one.is_of(registered)]
    return event.get("kind") == "training" and [event.get("model")] == folders


def _has_seed(model: Any, seed: int) -> bool:
    """Whether a model was trained with a seed; a pipeline has one per step, derived from it."""
    if "random_state" in model.get_params(deep=False):
        return bool(model.seed_ == seed)
    steps = getattr(model, "steps_", None)
    if steps is None:
        return False
    twin = fresh_copy(model, seed)
    return all(
        _has_seed(fitted, fresh.random_state)
        for (_, fitted), (_, fresh) in zip(steps, twin.steps, strict=True)
        if hasattr(fitted, "seed_") and hasattr(fresh, "random_state")
    )


def rebuild(audited: AuditedModel, level: str, trusted: Iterable[Any] = ()) -> Any:
    """Build a model from its file, whose hash must be that of the newest certificate.

    Returns the model, or the verdict on why it was not built.
    """
    if not audited.is_subject:
        reason = f"the file is not the one that certificate {audited.newest.sequence} is about"
        return LevelResult(level, audited.name, "fail", reason)
    try:
        return audited.build(trusted)
    except UntrustedClassError as error:
        reason = f"the model needs classes that you have not trusted: {error}"
        return LevelResult(level, audited.name, "skipped", reason)
    except Exception as error:  # noqa: BLE001 (a made-up state may raise anything)
        reason = f"the file holds no model that can be read: {type(error).__name__}"
        return LevelResult(level, audited.name, "fail", reason)


def check_data(audited: AuditedModel) -> LevelResult:
    """V2 on the rows: rows and salts in the bundle give the root that was certified."""
    data = audited.newest.predicate["dataset"]
    fail = partial(LevelResult, "V2", audited.name, "fail")
    try:
        rows = audited.rows
        root = tree_of(rows, audited.vault, data["slots"]).root.hex()
        # What only others had went with them: a table has nothing but its rows.
        is_tidy = state.encode(rows.take(np.arange(len(rows)))) == state.encode(rows)
    except Exception as error:  # noqa: BLE001 (made-up rows may raise anything)
        return fail(f"rows and salts make no commitment: {error}"[:300])
    if root != data["rootAfter"]:
        return fail("the rows in the bundle are not those that the certificate commits to")
    if not is_tidy:
        return fail("the table has more in it than its rows: categories or values that no row has")
    n_rows = len(audited.rows)
    if n_rows != data["liveAfter"]:
        return fail(f"{n_rows} rows, and the certificate says {data['liveAfter']}")
    reason = f"the {n_rows} rows in the bundle are those that the certificate commits to"
    return LevelResult("V2", audited.name, "pass", reason, {"rows": n_rows})


def is_made_here(audited: AuditedModel) -> bool:
    """Whether the certificate names the libraries and the kernel that are here."""
    here, there = describe(), audited.newest.predicate["execution"]
    return all(here[key] == there[key] for key in _PLACE)


def check_model(log: LogFacts, audited: AuditedModel, model: Any) -> tuple[LevelResult, Any]:
    """V4: settings and seed as certified, and the bytes of a fresh fit on the remaining rows.

    Returns the verdict and the re-derived model, None where there is none.
    """
    name = audited.name
    wrong = unlike_certified(audited, model) or wrong_seed(log, audited, model)
    if wrong:
        return LevelResult("V4", name, "fail", wrong), None
    content, same_place = audited.content, is_made_here(audited)
    if model.guarantee_.kind != "exact":
        beside = beside_the_model(model, audited.rows, content=content, same_place=same_place)
        if beside.wrong:
            return LevelResult("V4", name, "fail", beside.wrong), None
        reason = beside.undecided or (
            "the method draws secret noise or is approximate, so no two fits are equal; the file "
            "holds the remaining rows, numbers of a fit on them, and nothing else"
        )
        return LevelResult("V4", name, "skipped", reason), None
    verdict, rederived = check_rederivation(
        model, audited.rows, content=content, name=name, same_place=same_place
    )
    if unused := log.unused_training_keys:
        verdict = replace(verdict, details={**verdict.details, "unusedTrainingKeys": unused})
    return verdict, rederived


def unlike_certified(audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the settings: they must be those of every certificate.

    They were fixed before anybody asked to leave, so nothing of an erased row can be in them.
    """
    for certificate in audited.certificates:
        method = certificate.predicate["method"]
        try:
            expected = method_parameters(model, method["name"])
        except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
            return f"the settings of the model cannot be read: {type(error).__name__}"
        if method["parameters"] != expected:
            return f"settings are not those of certificate {certificate.sequence}"
    try:
        for certificate in audited.certificates:
            refuse_beyond_method(model, certificate.predicate)
        refuse_boasts(model, audited.newest.predicate)
    except SignerRefusedError as error:
        return f"the certificate claims more than the model permits: {error}"
    return _weaker_than_model(model, audited.newest.predicate)


def _weaker_than_model(model: Any, claims: Mapping[str, Any]) -> str | None:
    """Return where a certificate claims less than the ledger would have: it chooses the levels.

    An exact model that is called empirical would not be compared with a fresh fit, and bytes that
    must agree everywhere would be excused by a weaker replay.
    """
    is_retrain = claims["method"]["name"] == RETRAIN
    kind = claim_of(model, RETRAIN if is_retrain else "erase").guarantee.kind
    said = {"kind": claims["guarantee"]["kind"], "replay": claims["execution"]["replay"]}
    for name, value in {"kind": kind, "replay": replay_of(model)}.items():
        if said[name] != value:
            return f"the certificate says {name} {said[name]}, and the model gives {value}"
    return None


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows of planted people: those trained on and erased, and those never shown.

    Parameters
    ----------
    X_erased, y_erased : array-like
        Rows and labels of the erased ones. Labels drawn by lot are remembered best.
    X_unseen, y_unseen : array-like
        Rows and labels of the others, from the same pool.
    level : float, default=0.01
        Probability of failing a model that forgot.
    """

    X_erased: Any
    y_erased: Any
    X_unseen: Any
    y_unseen: Any
    level: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a level at which no model, or every model, would fail."""
        if not 0 < self.level < 1:
            raise ValueError(f"level={self.level!r} is no probability between 0 and 1")


def check_canaries(model: Any, canaries: Canaries, name: str = "") -> LevelResult:
    """Test whether erased canaries score like unseen ones.

    Parameters
    ----------
    model : fitted estimator
        The model under audit; only its predictions are used.
    canaries : Canaries
        Planted people.
    name : str
        Of the model, for the result.

    Returns
    -------
    LevelResult
        "fail" if the sum of ranks of the erased ones' scores is so high that chance alone gives
        one like it with a probability below the level (one-sided permutation test, which is exact
        for ties too); "skipped" if there are too few canaries for the level, or if the model
        knows none of their labels.
    """
    unknown = _unknown_labels(model, canaries)
    if unknown == 1.0:
        reason = "the model knows none of the canaries' labels; give them as it was trained on them"
        return LevelResult("V6", name, "skipped", reason)
    erased = own_label_scores(model, canaries.X_erased, canaries.y_erased)
    unseen = own_label_scores(model, canaries.X_unseen, canaries.y_unseen)
    fewest = min(len(erased), len(unseen))
    # No split is less likely than one of all; below that nothing could ever fail.
    least = max(1 / comb(len(erased) + len(unseen), len(erased)), 1 / (1 + _PERMUTATIONS))
    if fewest < _FEWEST or least >= canaries.level:
        reason = f"{fewest} canaries are too few; plant {_FEWEST} or more of each kind"
        return LevelResult("V6", name, "skipped", f"{reason}, more for a lower level")
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
    """Return the share of canaries whose label the model does not know, and so cannot score."""
    if not hasattr(model, "predict_proba"):
        return 0.0
    known = set(np.asarray(model.classes_).tolist())
    labels = [*np.asarray(canaries.y_erased).tolist(), *np.asarray(canaries.y_unseen).tolist()]
    return sum(label not in known for label in labels) / max(len(labels), 1)


def own_label_scores(model: Any, X: Any, y: Any) -> NDArray[np.float64]:
    """Return how much a model favours the label that each row came with; higher is more."""
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
    """Return the probability of a rank sum as large as that of `high` if the split is by lot."""
    ranks = rankdata(np.concatenate([high, low]))
    observed = ranks[: len(high)].sum()
    rng, reached = np.random.default_rng(0), 0
    block = np.tile(ranks, (_PERMUTATIONS // _BLOCKS, 1))
    for _ in range(_BLOCKS):
        sums = rng.permuted(block, axis=1)[:, : len(high)].sum(axis=1)
        reached += int((sums >= observed - 1e-9).sum())
    return (1 + reached) / (1 + _PERMUTATIONS)
