"""`audit`: check a bundle at every level that its files permit."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from letheon import sandbox
from letheon.audit._bound import check_bound, find_withdrawn_mechanism
from letheon.audit._bundle import (
    LEVELS,
    AuditedModel,
    AuditReport,
    Bundle,
    LevelResult,
    LogFacts,
    key_text,
    summarize,
)
from letheon.audit._levels import (
    Canaries,
    Stores,
    check_canaries,
    check_data,
    check_model,
    check_requests,
    check_residue,
    rebuild_model,
)
from letheon.audit._predictor import check_predictor
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
# The decisive level for each kind of guarantee, unless the auditor selects levels.
_LEVEL_BY_KIND = {"exact": "V4", "certified": "V5"}
_MODEL_LEVELS = ("V2", "V4", "V5", "V6", "own")
# These levels need verified rows and a verified log.
_NEED_ROWS_AND_LOG = ("V4", "V5", "own")
_NEED_LOG = ("V3", *_NEED_ROWS_AND_LOG)
# A model has a few results, plus one for each measure of the auditor.
_MOST_RESULTS, _LARGEST_RESULT = 16, 1 << 24


def run_measures(
    measures: Measures, model: Any, rederived: Any, audited: AuditedModel
) -> Iterator[LevelResult]:
    """Yield the result of every measure, or "skipped" if `rederived` is None."""
    for name, measure in measures.items():
        if rederived is None:
            reason = f"{name}: there is no re-derived model to compare with"
            yield LevelResult("own", audited.name, "skipped", reason)
            continue
        try:
            value = measure(model, rederived, audited.rows)
        except Exception as error:  # noqa: BLE001 (the auditor's code may raise anything)
            reason = f"{name}: raised {type(error).__name__}: {error}"
            yield LevelResult("own", audited.name, "fail", reason[:300])
            continue
        yield _convert_measure(name, value, audited.name)


def _convert_measure(name: str, value: Any, model: str) -> LevelResult:
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
class _Options:
    """The levels that the auditor selected, and the inputs that they provided."""

    levels: frozenset[str]
    trusted: tuple[Any, ...]
    canaries: Mapping[str, Canaries]
    measures: Measures
    only: str | None
    is_complete: bool

    def includes(self, *levels: str) -> bool:
        return not self.levels.isdisjoint(levels)

    @property
    def has_measures(self) -> bool:
        return self.includes("own") and bool(self.measures)

    def includes_level(self, level: str, kind: str) -> bool:
        """Return whether to run a level on a model whose guarantee has this kind.

        If all levels were requested, V4 is omitted for certified models and V5 for exact ones.
        "own" runs if there are measures.
        """
        if level == "own":
            return self.has_measures
        is_decisive = not self.is_complete or level == _LEVEL_BY_KIND.get(kind, level)
        return is_decisive and self.includes(level)

    def mark_promised(self, result: LevelResult, kind: str) -> LevelResult:
        """Return a result of V4 or V5 with `promised` set.

        The result is promised if its level is the decisive one for this kind of guarantee (V5 for
        certified, V4 for all others), or if the decisive level was not selected.
        """
        decisive = _LEVEL_BY_KIND.get(kind, "V4")
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
    """Audit an exported bundle with only its files and the ledger's public key.

    Parameters
    ----------
    bundle : path
        The folder that `Ledger.export` wrote.
    key : str, bytes or path
        First public key of the ledger, from a source other than the bundle: 64 hexadecimal digits,
        the 32 bytes, or a file with the digits.
    levels : iterable of str, optional
        Levels to check, ``"V0"`` to ``"V6"`` and ``"own"``; all by default.
    seen : str or path, optional
        A checkpoint from an earlier audit, as text or file. The log of the bundle must extend it.
    witnesses : iterable of str
        Verifier keys of witnesses that must have signed the newest checkpoint.
    stores : mapping or pairs of name and path
        Places to search for `markers` (V3); the auditor must be able to read them.
    markers : Markers, or iterable of bytes or str
        Ids, rows or planted texts of erased people, which must not occur in `stores`.
    canaries : mapping of model name to Canaries
        Canary rows that the auditor planted, for V6.
    measures : mapping of str to callable
        The auditor's own measures, ``measure(model, rederived, rows)``. A measure returns a number,
        a `Measure`, a bool (pass or fail), or a `LevelResult`.
    model : str, optional
        Name of the model to audit, as in its certificates. By default, all models are audited.
    trusted : iterable of class or str
        Classes that a model may use, in addition to those of letheon and scikit-learn.
    progress : callable, optional
        Called with every result as soon as it is available. An exception that it raises ends the
        audit.
    seconds : float, default=21600
        Time limit for one model.
    stop : Event, optional
        When this event is set, the process that checks models is ended and `StoppedError` is
        raised.
    sandboxed : bool, default=True
        Build and train models in a process without access to files, network and other processes.
        Use False only if you trust the bundle, for example to audit your own ledger when a model
        needs a GPU.

    Returns
    -------
    AuditReport
        A verdict with its reason for each level and model, and an overall verdict: "passed",
        "failed" or "incomplete".

    Raises
    ------
    ValueError
        There is no such level.

    Notes
    -----
    `LEVELS` lists what each level shows and what it cannot show. No code from the bundle is
    executed: models are built from plain values of allowed classes. Re-derivation trains a model,
    so it takes as long as training. Models are built and trained in a sandboxed process, which
    receives `measures` and `canaries`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon import NaiveUnlearner
    >>> from letheon.audit import audit
    >>> from letheon.ledger import Ledger
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.create(Path(folder, "ledger"), name="demo") as ledger:
    ...         _ = ledger.models.register(model, X, y, name="m")
    ...         _ = ledger.requests.submit([3], model="m", verified=True)
    ...         _ = ledger.run_once(force=True)
    ...         bundle = ledger.export(Path(folder, "bundle"))
    ...     audit(bundle, key=ledger.public_key, levels=["V0", "V1"]).verdict
    'passed'
    """
    selected = frozenset(LEVELS if levels is None else levels)
    if not selected <= LEVELS.keys():
        unknown = ", ".join(map(repr, sorted(selected - LEVELS.keys())))
        raise ValueError(f"unknown levels: {unknown}; expected one or more of: {', '.join(LEVELS)}")
    options = _Options(
        selected, tuple(trusted), canaries or {}, measures or {}, model, levels is None
    )
    _check_bundle_folder(Path(bundle))
    source = Bundle(Path(bundle), key_text(key))
    collected: list[LevelResult] = []

    def add(results: Iterable[LevelResult]) -> None:
        for result in results:
            collected.append(result)
            if progress is not None:
                progress(result)

    verdicts = verify_bundle(
        source.folder, source.key, seen_checkpoint=_read_checkpoint_text(seen), witnesses=witnesses
    )
    add(_convert_verdicts(verdicts, options))
    if options.includes("V3") and (stores or markers is not None):
        add([check_residue(stores, markers)])
    if verdicts[0].passed is False:
        return AuditReport(tuple(collected), key=source.key, scope=_describe_scope("", options))
    scope = _describe_scope(source.tier, options)
    try:
        _check_model_names(source, options)
        log_holds = all(result.verdict != "fail" for result in collected if result.level == "V1")
        add(_audit_requests(source, options, log_holds=log_holds))
        log = source.log_facts if log_holds and options.includes(*_NEED_ROWS_AND_LOG) else None
        add(_report_missing_models(source, options))
        for audited in _list_models(source, options):
            inputs = _ModelInputs(audited.with_files(), options, log)
            if sandboxed:
                _audit_in_sandbox(inputs, lambda result: add([result]), seconds, stop)
            else:
                add(_audit_model(inputs))
        subjects = tuple(summarize(source, newest) for newest in _list_newest(source, options))
    except VerificationError as error:
        add([LevelResult("V0", "", "fail", str(error))])
        return AuditReport(tuple(collected), key=source.key, scope=scope)
    ranked = sorted(collected, key=lambda result: tuple(LEVELS).index(result.level))
    return AuditReport(tuple(ranked), source.ledger, source.key, subjects, scope=scope)


def _check_bundle_folder(folder: Path) -> None:
    """Raise `FileNotFoundError` if a folder is not a bundle.

    The message suggests a subfolder that is a bundle, if there is one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder; expected a folder that `Ledger.export` wrote"
        )
    if any((folder / name).exists() for name in ("bundle.json", "certificates", "log.json")):
        return
    inside = sorted(path.parent for path in folder.glob("*/bundle.json"))
    hint = (
        f"did you mean {inside[0]}?" if inside else "expected a folder that `Ledger.export` wrote"
    )
    raise FileNotFoundError(f"{folder} is not a bundle; {hint}")


def _describe_scope(tier: str, options: _Options) -> str:
    """Return a text that says what a verdict covers: the bundle, the levels and the models."""
    bundle = {"public": "a public bundle, without models", "auditor": "an auditor's bundle"}
    models = "all its models" if options.only is None else f"only the model {options.only}"
    levels = "all levels of its tier"
    if not options.is_complete:
        levels = f"only the selected levels ({', '.join(sorted(options.levels))})"
    words = [bundle.get(tier, "a bundle that cannot be read"), levels]
    return ", ".join([*words, models] if tier == "auditor" else words)


def _read_checkpoint_text(seen: str | Path | None) -> str | None:
    if seen is None or (isinstance(seen, str) and "\n" in seen):
        return seen
    return read_capped(Path(seen), SMALL).decode("utf-8", "replace")


def _convert_verdicts(verdicts: Iterable[Verdict], options: _Options) -> Iterator[LevelResult]:
    """Yield the verdicts on signed files (V0 to V3) as results of the selected levels.

    A failure of V0, or of a V1 that a selected level needs, is included even if the level was not
    selected.
    """
    words = {True: "pass", False: "fail", None: "skipped"}
    for verdict in verdicts:
        failed_first = verdict.level == "V0" and not verdict.passed
        needed = verdict.level == "V1" and verdict.passed is False and options.includes(*_NEED_LOG)
        if verdict.level in options.levels or failed_first or needed:
            word: Any = words[verdict.passed]
            promised = verdict.promised or not options.is_complete
            yield LevelResult(verdict.level, "", word, verdict.reason, promised=promised)


def _list_newest(bundle: Bundle, options: _Options) -> list[Any]:
    newest = {opened.predicate["model"]["id"]: opened for opened in bundle.chain}
    return [opened for name, opened in newest.items() if options.only in (None, name)]


def _check_model_names(bundle: Bundle, options: _Options) -> None:
    """Raise `ValueError` if `model` or `canaries` name a model without a certificate."""
    names = {str(opened.predicate["model"]["id"]) for opened in bundle.chain}
    required = {*options.canaries, *([] if options.only is None else [options.only])}
    if not required <= names:
        raise ValueError(
            f"the bundle has no certificate for the models {sorted(required - names)}; models "
            f"with certificates: {sorted(names)}"
        )


def _audit_requests(bundle: Bundle, options: _Options, *, log_holds: bool) -> Iterator[LevelResult]:
    if not (log_holds and options.includes("V1")):
        return
    try:
        result = check_requests(bundle)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"the events of requests cannot be read: {type(error).__name__}"
        result = LevelResult("V1", "", "fail", reason)
    if result is not None:
        yield result


@dataclass(frozen=True)
class _ModelInputs:
    """One model with its files, the options, and the log if V1 passed."""

    audited: AuditedModel
    options: _Options
    log: LogFacts | None


def _list_models(bundle: Bundle, options: _Options) -> list[AuditedModel]:
    """Return the models that have certificates and files.

    The list is empty if no selected level checks models.
    """
    if not options.includes(*_MODEL_LEVELS):
        return []
    return [audited for audited in bundle.models if options.only in (None, audited.name)]


def _report_missing_models(bundle: Bundle, options: _Options) -> Iterator[LevelResult]:
    """Yield results for models that have certificates but no files."""
    with_files = {audited.name for audited in _list_models(bundle, options)}
    names = [str(opened.predicate["model"]["id"]) for opened in _list_newest(bundle, options)]
    for name in names if options.includes(*_MODEL_LEVELS) else []:
        if name not in with_files:
            is_selected = {
                "V4": options.includes("V4", "V5"),
                "V6": options.includes("V6") and name in options.canaries,
                "own": options.has_measures,
            }
            missing = _report_missing_model(bundle, options, name)
            yield from (
                replace(missing, level=level) for level in is_selected if is_selected[level]
            )


def _audit_in_sandbox(
    inputs: _ModelInputs,
    add: Callable[[LevelResult], None],
    seconds: float,
    stop: threading.Event | None,
) -> None:
    """Audit one model in a sandboxed process; call `add` with each result."""
    name = inputs.audited.name
    received: list[LevelResult] = []
    most = _MOST_RESULTS + len(inputs.options.measures)
    decisive = _LEVEL_BY_KIND.get(str(inputs.audited.newest.predicate["guarantee"]["kind"]), "V4")

    def receive_result(fields: dict[str, Any]) -> None:
        # A malicious model may control its process, so only results about this model are accepted.
        try:
            result = replace(LevelResult(**fields), model=name)
        except (TypeError, ValueError):
            raise sandbox.EndedError("forged-answer") from None
        if result.level not in _MODEL_LEVELS or len(received) > most:
            raise sandbox.EndedError("forged-answer")
        received.append(replace(result, promised=result.promised or result.level == decisive))
        add(received[-1])

    files = inputs.audited.files or {}
    content = files["model.blob"]
    trusted = inputs.options.trusted
    limits = sandbox.Limits.for_input(sum(map(len, files.values())), seconds=seconds)
    try:
        sandbox.call(
            _send_model_results,
            inputs,
            limits=replace(limits, result=_LARGEST_RESULT),
            modules=sandbox.modules_of(content if isinstance(content, bytes) else b"", trusted),
            report=receive_result,
            stop=stop,
        )
    except sandbox.TimeLimitError:
        reason = f"the audit of the model took longer than {seconds:g} s; increase `seconds`"
        add(LevelResult("V4", name, "skipped", reason))
        return
    except sandbox.EndedError as error:
        verdict: Any = "skipped" if str(error) == "memory-limit" else "fail"
        add(LevelResult("V4", name, verdict, f"the process that checks the model failed: {error}"))
        return
    is_decided = any(result.level in {"V4", "V5"} for result in received)
    if inputs.options.includes("V4", "V5") and not is_decided:
        reason = "the process that checks the model returned no verdict"
        add(LevelResult(decisive, name, "fail", reason))


def _send_model_results(inputs: _ModelInputs, tell: Callable[[Any], None]) -> None:
    try:
        for result in _audit_model(inputs):
            tell(vars(result) | {"details": dict(result.details)})
    except VerificationError as error:
        tell(vars(LevelResult("V4", inputs.audited.name, "fail", str(error)[:300])))


def _report_missing_model(bundle: Bundle, options: _Options, name: str) -> LevelResult:
    """Return the verdict on a model that has certificates but no files."""
    if bundle.tier == "public":
        reason = "a public bundle contains no models; request the auditor's bundle"
        return LevelResult("V4", name, "skipped", reason, promised=not options.is_complete)
    if bundle.scope is None:
        reason = "the bundle has no files of the model and no signed list of the expected files"
    elif is_in_scope(name, bundle.scope):
        return LevelResult("V4", name, "fail", "the files of the model are missing from the bundle")
    else:
        limits = ", ".join(f"{key} {text}" for key, text in bundle.scope.items())
        reason = f"the export was limited to {limits}; request a bundle of all models, or name one"
    return LevelResult("V4", name, "skipped", reason)


def _audit_model(inputs: _ModelInputs) -> Iterator[LevelResult]:
    audited, options = inputs.audited, inputs.options
    data, _ = _run_check("V2", audited, lambda: (check_data(audited), None))
    if options.includes("V2") or data.verdict == "fail":
        yield data
    if not options.includes("V4", "V5", "V6", "own"):
        return
    withdrawn = find_withdrawn_mechanism(audited)
    if withdrawn is not None:
        yield options.mark_promised(withdrawn, "certified")
        return
    model = rebuild_model(audited, "V4", options.trusted)
    if isinstance(model, LevelResult):
        yield model
        return
    kind = _read_guarantee_kind(model)
    if data.verdict != "fail" and inputs.log is not None:
        yield from _audit_committed(inputs.log, audited, model, options)
    else:
        wrong = "this level needs the log of the bundle, and V1 failed"
        if data.verdict == "fail":
            wrong = "this level needs the rows that the certificate commits to, and V2 failed"
        selected = [level for level in _NEED_ROWS_AND_LOG if options.includes_level(level, kind)]
        yield from (LevelResult(level, audited.name, "fail", wrong) for level in selected)
    wrong_predictor = check_predictor(audited, model, _LEVEL_BY_KIND.get(kind, "V4"))
    if wrong_predictor is not None and options.includes("V4", "V5"):
        yield wrong_predictor
    if options.includes("V6") and audited.name in options.canaries:
        model_canaries = options.canaries[audited.name]
        check = lambda: (check_canaries(model, model_canaries, audited.name), None)  # noqa: E731
        yield _run_check("V6", audited, check)[0]


def _audit_committed(
    log: LogFacts, audited: AuditedModel, model: Any, options: _Options
) -> Iterator[LevelResult]:
    """Yield results about a model whose rows and log agree with the certificates."""
    kind, rederived = _read_guarantee_kind(model), None
    wants_v4 = options.includes_level("V4", kind)
    if wants_v4 or options.has_measures:
        verdict, rederived = _run_check("V4", audited, lambda: check_model(log, audited, model))
        if wants_v4:
            yield options.mark_promised(verdict, kind)
    if options.includes_level("V5", kind):
        verdict, _ = _run_check("V5", audited, lambda: (check_bound(log, audited, model), None))
        yield options.mark_promised(verdict, kind)
    if options.includes("own"):
        yield from run_measures(options.measures, model, rederived, audited)


def _read_guarantee_kind(model: Any) -> str:
    """Return the kind of guarantee of a model; if it cannot be read, the strictest: "exact"."""
    try:
        return str(model.guarantee_.kind)
    except Exception:  # noqa: BLE001 (an untrusted model may raise anything)
        return "exact"


def _run_check(
    level: str, audited: AuditedModel, check: Callable[[], tuple[LevelResult, Any]]
) -> tuple[LevelResult, Any]:
    """Run a check and return its result.

    An exception counts as "fail"; a missing library counts as "skipped".
    """
    try:
        return check()
    except ImportError as error:
        reason = f"a library that this level needs is not installed: {error.name or 'unknown'}"
        return LevelResult(level, audited.name, "skipped", reason), None
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        reason = f"the check raised {type(error).__name__}: {error}"
        return LevelResult(level, audited.name, "fail", reason[:300]), None
