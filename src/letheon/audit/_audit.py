"""`audit`: every level that the files at hand permit."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from letheon import sandbox
from letheon.audit._bound import check_bound, find_withdrawn
from letheon.audit._bundle import (
    LEVELS,
    AuditedModel,
    AuditReport,
    Bundle,
    LevelResult,
    LogFacts,
    key_text,
    summary_of,
)
from letheon.audit._levels import (
    Canaries,
    Stores,
    check_canaries,
    check_data,
    check_model,
    check_requests,
    check_residue,
    rebuild,
)
from letheon.measures import Measure
from letheon.verifier import (
    SMALL,
    Verdict,
    VerificationError,
    is_in_scope,
    read_capped,
    verify_bundle,
)

Measures = Mapping[str, Callable[[Any, Any, Any], Any]]
# Which of the two looks at a model, unless the auditor names levels.
_LEVEL_OF = {"exact": "V4", "certified": "V5"}
_MODEL = ("V2", "V4", "V5", "V6", "own")
# They rest on rows that a certificate commits to, and on events of the log.
_GROUNDED = ("V4", "V5", "own")
_ON_THE_LOG = ("V3", *_GROUNDED)
# One model gives a handful of results, beside one for each measure of the auditor.
_MOST_RESULTS, _LARGEST_RESULT = 16, 1 << 24


def run_measures(
    measures: Measures, model: Any, rederived: Any, audited: AuditedModel
) -> Iterator[LevelResult]:
    """Yield the result of every measure; without a re-derived model it is skipped."""
    for name, measure in measures.items():
        if rederived is None:
            reason = f"{name}: there is no re-derived model to measure against"
            yield LevelResult("own", audited.name, "skipped", reason)
            continue
        try:
            value = measure(model, rederived, audited.rows)
        except Exception as error:  # noqa: BLE001 (the auditor's code may raise anything)
            reason = f"{name}: raised {type(error).__name__}: {error}"
            yield LevelResult("own", audited.name, "fail", reason[:300])
            continue
        yield _result(name, value, audited.name)


def _result(name: str, value: Any, model: str) -> LevelResult:
    if isinstance(value, LevelResult):
        return replace(value, level="own", model=model)
    if isinstance(value, bool | np.bool_):
        verdict: Any = "pass" if value else "fail"
        words = "holds" if value else "does not hold"
        return LevelResult("own", model, verdict, f"{name}: {words}")
    if isinstance(value, Measure):
        details = {"value": value.value, "low": value.low, "high": value.high, "n": value.n}
        return LevelResult("own", model, "pass", f"{name} = {value.value:.6g}", details)
    number = float(value)
    return LevelResult("own", model, "pass", f"{name} = {number:.6g}", {"value": number})


@dataclass(frozen=True)
class _Order:
    """What the auditor wants looked at, and what they brought."""

    levels: frozenset[str]
    trusted: tuple[Any, ...]
    canaries: Mapping[str, Canaries]
    measures: Measures
    only: str | None
    is_complete: bool

    def wants(self, *levels: str) -> bool:
        return not self.levels.isdisjoint(levels)

    @property
    def wants_measures(self) -> bool:
        return self.wants("own") and bool(self.measures)

    def wants_for(self, level: str, kind: str) -> bool:
        """Whether to look at V4 or V5, which depends on the kind of guarantee, or at "own"."""
        if level == "own":
            return self.wants_measures
        is_meant = not self.is_complete or level == _LEVEL_OF.get(kind, level)
        return is_meant and self.wants(level)

    def mark_promised(self, result: LevelResult, kind: str) -> LevelResult:
        """Return a result of V4 or V5; skipped, it counts unless the other one decides."""
        decisive = _LEVEL_OF.get(kind, "V4")
        return replace(result, promised=result.level == decisive or decisive not in self.levels)


def audit(
    bundle: str | Path,
    *,
    key: str | bytes | Path,
    levels: Iterable[str] | None = None,
    seen: str | Path | None = None,
    witnesses: Iterable[str] = (),
    stores: Stores = (),
    markers: Any = None,
    canaries: Mapping[str, Canaries] | None = None,
    measures: Measures | None = None,
    model: str | None = None,
    trusted: Iterable[Any] = (),
    progress: Callable[[LevelResult], None] | None = None,
    seconds: float = 6 * 3600.0,
    stop: threading.Event | None = None,
    sandboxed: bool = True,
) -> AuditReport:
    """Audit an exported bundle with its files and the ledger's public key alone.

    Parameters
    ----------
    bundle : path
        The folder that `Ledger.export` wrote.
    key : str, bytes or path
        First public key of the ledger, from a source other than the bundle: 64 hexadecimal digits,
        the 32 bytes, or a file of the digits.
    levels : iterable of str, optional
        Levels to look at, ``"V0"`` to ``"V6"`` and ``"own"``; all by default.
    seen : str or path, optional
        A checkpoint kept from an earlier audit, as text or file: the log must continue it.
    witnesses : iterable of str
        Verifier keys of witnesses that must have signed the newest checkpoint.
    stores : mapping or pairs of name and path
        Places that the auditor may read, to be searched for `markers` (V3).
    markers : Markers, or iterable of bytes or str
        What must not be found: ids, rows or planted texts of erased people.
    canaries : mapping of model name to Canaries
        People that the auditor planted, for V6.
    measures : mapping of str to callable
        The auditor's own measures, ``measure(model, rederived, rows)``: a number, a `Measure`, a
        bool that says pass or fail, or a `LevelResult`.
    model : str, optional
        One model only, as its certificates name it.
    trusted : iterable of class or str
        Classes besides letheon's and scikit-learn's that a model may name.
    progress : callable, optional
        Called with every result as soon as it is there, in the order in which they are found.
        What it raises ends the audit.
    seconds : float, default=21600
        Longest time for one model.
    stop : Event, optional
        When it is set, the process that looks at models is ended and `StoppedError` raised.
    sandboxed : bool, default=True
        Build and train models in a process that can reach no file, no network and no other
        process. False trusts the bundle: for models that need a GPU, from a ledger of your own.

    Returns
    -------
    AuditReport
        A verdict per level and model, each with its reason, and one verdict on the whole:
        "passed", "failed" or "incomplete".

    Notes
    -----
    What each level shows, and what it cannot show, stands in `LEVELS`. Nothing of the bundle is
    executed: models are built from plain values of allowed classes. Re-derivation trains a model,
    so it takes as long as training did; that happens in a sandboxed process, to which `measures`
    and `canaries` are sent.
    """
    wanted = frozenset(LEVELS if levels is None else levels)
    if not wanted <= LEVELS.keys():
        raise ValueError(f"levels {sorted(wanted - LEVELS.keys())}; expected some of {[*LEVELS]}")
    order = _Order(wanted, tuple(trusted), canaries or {}, measures or {}, model, levels is None)
    _require_bundle(Path(bundle))
    read = Bundle(Path(bundle), key_text(key))
    found: list[LevelResult] = []

    def keep(results: Iterable[LevelResult]) -> None:
        for result in results:
            found.append(result)
            if progress is not None:
                progress(result)

    verdicts = verify_bundle(
        read.folder, read.key, seen_checkpoint=_text(seen), witnesses=witnesses
    )
    keep(_paper(verdicts, order))
    if order.wants("V3") and (stores or markers is not None):
        keep([check_residue(stores, markers)])
    if verdicts[0].passed is False:
        return AuditReport(tuple(found), key=read.key, scope=_scope_of("", order))
    scope = _scope_of(read.tier, order)
    try:
        _require_known(read, order)
        log_holds = all(result.verdict != "fail" for result in found if result.level == "V1")
        keep(_about_requests(read, order, log_holds=log_holds))
        log = read.log_facts if log_holds and order.wants(*_GROUNDED) else None
        keep(_missing_models(read, order))
        for audited in _audited_models(read, order):
            scene = _Scene(audited.with_files(), order, log)
            if sandboxed:
                _look(scene, lambda result: keep([result]), seconds, stop)
            else:
                keep(_about_model(scene))
        subjects = tuple(summary_of(read, one) for one in _newest(read, order))
    except VerificationError as error:
        keep([LevelResult("V0", "", "fail", str(error))])
        return AuditReport(tuple(found), key=read.key, scope=scope)
    ranked = sorted(found, key=lambda result: tuple(LEVELS).index(result.level))
    return AuditReport(tuple(ranked), read.ledger, read.key, subjects, scope=scope)


def _require_bundle(folder: Path) -> None:
    """Refuse a folder that is no bundle at all, and name the one that is meant."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give the one that `Ledger.export` wrote")
    if any((folder / name).exists() for name in ("bundle.json", "certificates", "log.json")):
        return
    inside = sorted(path.parent for path in folder.glob("*/bundle.json"))
    hint = f"; did you mean {inside[0]}?" if inside else "; give the one that `Ledger.export` wrote"
    raise FileNotFoundError(f"{folder} holds no bundle{hint}")


def _scope_of(tier: str, order: _Order) -> str:
    """Say what a verdict covers."""
    bundle = {"public": "a public bundle, so no model", "auditor": "an auditor's bundle"}
    models = "all its models" if order.only is None else f"the model {order.only} only"
    levels = "all levels that it promises"
    if not order.is_complete:
        levels = f"the levels asked for only ({', '.join(sorted(order.levels))})"
    words = [bundle.get(tier, "a bundle that cannot be read"), levels]
    return ", ".join([*words, models] if tier == "auditor" else words)


def _text(seen: str | Path | None) -> str | None:
    if seen is None or (isinstance(seen, str) and "\n" in seen):
        return seen
    return read_capped(Path(seen), SMALL).decode("utf-8", "replace")


def _paper(verdicts: Iterable[Verdict], order: _Order) -> Iterator[LevelResult]:
    """V0 to V3 on what is signed; what others rest on is always looked at, and told if it fails."""
    words = {True: "pass", False: "fail", None: "skipped"}
    for verdict in verdicts:
        failed_first = verdict.level == "V0" and not verdict.passed
        needed = verdict.level == "V1" and verdict.passed is False and order.wants(*_ON_THE_LOG)
        if verdict.level in order.levels or failed_first or needed:
            word: Any = words[verdict.passed]
            promised = verdict.promised or not order.is_complete
            yield LevelResult(verdict.level, "", word, verdict.reason, promised=promised)


def _newest(bundle: Bundle, order: _Order) -> list[Any]:
    newest = {one.predicate["model"]["id"]: one for one in bundle.chain}
    return [one for name, one in newest.items() if order.only in (None, name)]


def _require_known(bundle: Bundle, order: _Order) -> None:
    """Refuse names that no certificate has: nothing would be looked at, and nothing would fail."""
    names = {str(one.predicate["model"]["id"]) for one in bundle.chain}
    wanted = {*order.canaries, *([] if order.only is None else [order.only])}
    if not wanted <= names:
        raise ValueError(
            f"no certificate is about {sorted(wanted - names)}; expected some of {sorted(names)}"
        )


def _about_requests(bundle: Bundle, order: _Order, *, log_holds: bool) -> Iterator[LevelResult]:
    if not (log_holds and order.wants("V1")):
        return
    try:
        result = check_requests(bundle)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"the events of requests cannot be read: {type(error).__name__}"
        result = LevelResult("V1", "", "fail", reason)
    if result is not None:
        yield result


@dataclass(frozen=True)
class _Scene:
    """One model with its files, what is asked about it, and the log, where that holds."""

    audited: AuditedModel
    order: _Order
    log: LogFacts | None


def _audited_models(bundle: Bundle, order: _Order) -> list[AuditedModel]:
    """Return the models that have certificates and files, if any level looks at models."""
    if not order.wants(*_MODEL):
        return []
    return [one for one in bundle.models if order.only in (None, one.name)]


def _missing_models(bundle: Bundle, order: _Order) -> Iterator[LevelResult]:
    """Yield what is said about models that have certificates and no files."""
    have = {one.name for one in _audited_models(bundle, order)}
    names = [str(one.predicate["model"]["id"]) for one in _newest(bundle, order)]
    for name in names if order.wants(*_MODEL) else []:
        if name not in have:
            # Nothing is left out in silence.
            is_asked = {
                "V4": order.wants("V4", "V5"),
                "V6": order.wants("V6") and name in order.canaries,
                "own": order.wants_measures,
            }
            missing = _missing_model(bundle, order, name)
            yield from (replace(missing, level=level) for level, is_it in is_asked.items() if is_it)


def _look(
    scene: _Scene,
    keep: Callable[[LevelResult], None],
    seconds: float,
    stop: threading.Event | None,
) -> None:
    """Look at one model, in a process that can reach nothing."""
    name = scene.audited.name
    heard: list[LevelResult] = []
    decisive = _LEVEL_OF.get(str(scene.audited.newest.predicate["guarantee"]["kind"]), "V4")

    def hear(fields: dict[str, Any]) -> None:
        # The model may have taken its process over: it speaks for itself, and in bounds.
        try:
            result = replace(LevelResult(**fields), model=name)
        except (TypeError, ValueError):
            raise sandbox.EndedError("forged-answer") from None
        if result.level not in _MODEL or len(heard) > _MOST_RESULTS + len(scene.order.measures):
            raise sandbox.EndedError("forged-answer")
        heard.append(replace(result, promised=result.promised or result.level == decisive))
        keep(heard[-1])

    files = scene.audited.files or {}
    content = files["model.blob"]
    trusted = scene.order.trusted
    limits = sandbox.Limits.for_input(sum(map(len, files.values())), seconds=seconds)
    try:
        sandbox.call(
            _tell_about_model,
            scene,
            limits=replace(limits, result=_LARGEST_RESULT),
            modules=sandbox.modules_of(content if isinstance(content, bytes) else b"", trusted),
            tell=hear,
            stop=stop,
        )
    except sandbox.TimeLimitError:
        reason = f"it took longer than {seconds:g} s; allow more with `seconds`"
        keep(LevelResult("V4", name, "skipped", reason))
        return
    except sandbox.EndedError as error:
        verdict: Any = "skipped" if str(error) == "memory-limit" else "fail"
        keep(LevelResult("V4", name, verdict, f"the process that looked at it ended: {error}"))
        return
    if scene.order.wants("V4", "V5") and not any(one.level in {"V4", "V5"} for one in heard):
        keep(LevelResult(decisive, name, "fail", "the process that looked at it gave no verdict"))


def _tell_about_model(scene: _Scene, tell: Callable[[Any], None]) -> None:
    try:
        for result in _about_model(scene):
            tell(vars(result) | {"details": dict(result.details)})
    except VerificationError as error:
        tell(vars(LevelResult("V4", scene.audited.name, "fail", str(error)[:300])))


def _missing_model(bundle: Bundle, order: _Order, name: str) -> LevelResult:
    """Return the verdict on a model that has certificates and no files."""
    if bundle.tier == "public":
        reason = "a public bundle has no files of models; ask for the auditor's bundle"
        return LevelResult("V4", name, "skipped", reason, promised=not order.is_complete)
    if bundle.scope is None:
        reason = "the bundle has no files of the model, and no signed word on which it should have"
    elif is_in_scope(name, bundle.scope):
        return LevelResult("V4", name, "fail", "the files of the model are missing from the bundle")
    else:
        limits = ", ".join(f"{key} {text}" for key, text in bundle.scope.items())
        reason = f"the export was limited to {limits}; ask for a bundle of all models, or name one"
    return LevelResult("V4", name, "skipped", reason)


def _about_model(scene: _Scene) -> Iterator[LevelResult]:
    audited, order = scene.audited, scene.order
    data, _ = _guarded("V2", audited, lambda: (check_data(audited), None))
    if order.wants("V2") or data.verdict == "fail":
        yield data
    if not order.wants("V4", "V5", "V6", "own"):
        return
    withdrawn = find_withdrawn(audited)
    if withdrawn is not None:
        yield order.mark_promised(withdrawn, "certified")
        return
    model = rebuild(audited, "V4", order.trusted)
    if isinstance(model, LevelResult):
        yield model
        return
    if data.verdict != "fail" and scene.log is not None:
        yield from _grounded(scene.log, audited, model, order)
    else:
        wrong = "it rests on the log of the bundle, and V1 failed"
        if data.verdict == "fail":
            wrong = "it rests on rows that are not those that the certificate commits to"
        kind = _kind_of(model)
        asked = [level for level in _GROUNDED if order.wants_for(level, kind)]
        yield from (LevelResult(level, audited.name, "fail", wrong) for level in asked)
    if order.wants("V6") and audited.name in order.canaries:
        planted = order.canaries[audited.name]
        look = lambda: (check_canaries(model, planted, audited.name), None)  # noqa: E731
        yield _guarded("V6", audited, look)[0]


def _grounded(
    log: LogFacts, audited: AuditedModel, model: Any, order: _Order
) -> Iterator[LevelResult]:
    """What is said about a model once its rows and the log are those of the certificates."""
    kind, rederived = _kind_of(model), None
    wants_v4 = order.wants_for("V4", kind)
    if wants_v4 or order.wants_measures:
        verdict, rederived = _guarded("V4", audited, lambda: check_model(log, audited, model))
        if wants_v4:
            yield order.mark_promised(verdict, kind)
    if order.wants_for("V5", kind):
        verdict, _ = _guarded("V5", audited, lambda: (check_bound(audited, model), None))
        yield order.mark_promised(verdict, kind)
    if order.wants("own"):
        yield from run_measures(order.measures, model, rederived, audited)


def _kind_of(model: Any) -> str:
    """Return the kind of guarantee; a model that cannot say is looked at as an exact one."""
    try:
        return str(model.guarantee_.kind)
    except Exception:  # noqa: BLE001 (an untrusted model may raise anything)
        return "exact"


def _guarded(
    level: str, audited: AuditedModel, look: Callable[[], tuple[LevelResult, Any]]
) -> tuple[LevelResult, Any]:
    """Return a verdict and what came with it; a model that cannot be looked at has failed."""
    try:
        return look()
    except ImportError as error:
        reason = f"a library that the level needs is not here: {error.name or 'unknown'}"
        return LevelResult(level, audited.name, "skipped", reason), None
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        reason = f"it could not be looked at: {type(error).__name__}: {error}"
        return LevelResult(level, audited.name, "fail", reason[:300]), None
