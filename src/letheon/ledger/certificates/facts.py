"""Facts in a certificate about a model and a removal, computed from the model.

The result is stored in the database as canonical JSON: texts and whole numbers only. It contains no
id, row or seed, and its figures have few digits. `rows`, `live`, the spent budget and the duration
are for the ledger only: the certificate of a certified removal omits the last two
(`certificate_account`, `without_times`).

Each of the survey's four measures has a value and a basis. A proxy is never shown as a measurement.
A measure that was not taken has the metric ``not-measured``, and `notClaimed` repeats it.
"""

import hashlib
import platform
import re
import secrets
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

import letheon
from letheon import state
from letheon.data import Rows, hold_table, hold_target, row_ids, table_length
from letheon.exceptions import CertificateError, SignerRefusedError
from letheon.guarantee import KINDS, Guarantee, Replay
from letheon.ledger.certificates.claims import (
    RETRAIN,
    Claim,
    class_code,
    decimal,
    describe_parameters,
    figure,
    get_accounted_part,
    guarantee_section,
    is_code,
    is_of_letheon,
    make_claim,
    reject_stronger_claims,
)
from letheon.ledger.certificates.predictors import describe_predictor
from letheon.receipt import Receipt

if TYPE_CHECKING:
    from letheon.monitor import Reading

# Methods that may fit a step on a keyed sample of people.
_SAMPLING = ("pipeline", "forget-search", "stable-preprocessing")
PROPERTIES = ("efficiency", "effectiveness", "consistency", "certifiability")
NOT_MEASURED = "not-measured"
# Codes of letheon's metrics; a custom metric is not named.
_METRICS = {
    "mean probability of the true label": "true-label-probability",
    "accuracy": "accuracy",
    "R²": "r2",
}
METRIC_CODES = frozenset(_METRICS.values())
# An exact removal has the bytes of a retrain, so these measures follow by proof.
_BY_PROOF = {"effectiveness": "acc-diff", "consistency": "param-l2", "certifiability": "sape"}
_ROUNDED = "equal-but-for-rounding"
# The metric of a monitor is part of its policy, whose digest is in the certificate.
_MONITORED = {"effectiveness": "metric-diff", "certifiability": "sape"}

_STRENGTH: tuple[Replay, ...] = ("bitwise", "bitwise-same-kernel", "tolerance")
_CODE_ENDINGS = frozenset({".py", ".pyi", ".so", ".pyd", ".md", ".mako", ".toml", ".json"})
# The policy of a model without a monitor.
NO_MONITOR = hashlib.sha256(b"letheon/no-monitor/v1").hexdigest()
CALLER_SEED = "caller-seed-v1"
_RANDOMNESS = ("rule", "beacon", "keyCommitment")
_NEVER_CLAIMED = (
    "no-copy-kept-outside-inventory",
    "backups-expired",
    "downstream-copies",
    "purge-of-earlier-versions",
    "hyper-parameters-chosen-without-erased-rows",
    "rows-are-those-of-the-requests",
    "every-request-recorded",
)
ONE_PERSON = "batch-of-one"


class JudgementBasis(NamedTuple):
    """Data to evaluate a version with: a packed monitor, or test rows with the last score."""

    monitor: bytes | None
    test: Rows | None
    then: float


class TestFigures(NamedTuple):
    """Performance of the current model and of the last retrained model on a test set."""

    metric: str
    now: float
    then: float
    n: int


def test_metric(model: Any, X: Any, y: Any) -> tuple[str, float]:
    """Return the code of a model's default metric and its value on test rows."""
    # The import takes a second, and few commands need it.
    from letheon.monitor import choose_judge, spread_of

    judge, table, target = choose_judge(model, None), hold_table(X), hold_target(y)
    rows = Rows(table, target, row_ids(None, table_length(table)))
    value = judge.compute_metric(target, judge.compute_outputs(model, rows), spread_of(target))
    return _METRICS[judge.name], float(value)


# pytest must not collect these names as tests.
vars(test_metric)["__test__"] = False
setattr(TestFigures, "__test__", False)  # noqa: B010


def measurements(
    claim: Guarantee,
    *,
    is_retrain: bool,
    is_proved: bool,
    speedup: float | None = None,
    test: TestFigures | None = None,
    reading: "Reading | None" = None,
) -> dict[str, dict[str, Any]]:
    """Return one measure for each of the survey's four properties.

    A measure counts as proved only for a method that is part of letheon (`is_proved`). Equality is
    not claimed for a fit that is equal except for rounding.

    Effectiveness is ``|M(h_m) - M(h*)|``, where ``h*`` is the last retrained model. It is a proxy
    for the comparison with a model retrained now. Efficiency is ``time(retrain) / time(removal)``.
    """
    measures = dict.fromkeys(PROPERTIES, _make_measure())
    if claim.kind == "certified" and is_proved:
        assert claim.epsilon is not None
        measures["certifiability"] = _make_measure(
            "epsilon", decimal(claim.epsilon), basis="by-proof"
        )
    # An upper estimate has one digit: two would distinguish candidates for the erased row.
    if test is not None:
        gap = figure(abs(test.now - test.then), "up", digits=1)
        measures["effectiveness"] = _make_measure(f"{test.metric}-diff", gap, test.n)
    if reading is not None:
        for name, code in _MONITORED.items():
            if np.isfinite(proxy := reading.proxies.get(name, np.nan)):
                measures[name] = _make_measure(code, figure(proxy, "up", digits=1), reading.n_test)
    if claim.kind == "exact" and is_proved and _ROUNDED not in claim.assumptions:
        for name, code in _BY_PROOF.items():
            measures[name] = _make_measure(code, basis="by-proof")
    if is_retrain:
        measures["efficiency"] = _make_measure("speedup", "1", basis="by-proof")
    elif speedup is not None:
        measures["efficiency"] = _make_measure("speedup", figure(speedup, "down"), 1)
    return measures


def _make_measure(
    metric: str = NOT_MEASURED,
    value: str = "0",
    n: int = 0,
    basis: Literal["proxy-estimate", "by-proof"] = "proxy-estimate",
) -> dict[str, Any]:
    return {"metric": metric, "value": value, "n": n, "basis": basis}


def without_times(kind: str, method: str, measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures for a certificate, without times where they reveal something.

    The duration of a removal depends on the removed rows, and (epsilon, delta) does not cover it.
    The duration in a pipeline or search reveals whether a person was in a keyed sample.
    """
    is_hidden = kind == "certified" or method in _SAMPLING
    return {**measures, "efficiency": _make_measure()} if is_hidden else dict(measures)


def list_unmeasured(measures: dict[str, dict[str, Any]]) -> list[str]:
    """Return the codes of the measures that were not taken, for the field `notClaimed`."""
    return [
        f"{name}-{NOT_MEASURED}" for name in PROPERTIES if measures[name]["metric"] == NOT_MEASURED
    ]


def describe_execution(image: str | None = None) -> dict[str, Any]:
    """Return the `execution` part of a certificate, without the field `replay`.

    Parameters
    ----------
    image : str, optional
        SHA-256 of the container image, from the ledger's settings. By default the description of
        the platform is hashed; it is the same for machines of one kind and names no machine.

    Returns
    -------
    dict
        `code` is the hash of the files of the installed package, and `lockfile` is the hash of
        the sorted lines ``name==version`` of the environment. `threads` is 1, because
        every computation uses one thread.
    """
    python = platform.python_version()
    kind = (platform.system(), platform.machine(), *platform.libc_ver())
    parts = (*kind, platform.python_implementation(), python)
    return {
        "code": {"sha256": code_digest()},
        "lockfile": {"sha256": lockfile_digest()},
        "image": {"sha256": image or hashlib.sha256("\n".join(parts).encode()).hexdigest()},
        "python": python,
        "kernel": kernel_code(state.environment()["blas"]),
        "threads": 1,
    }


def has_same_libraries(execution: Mapping[str, Any]) -> bool:
    """Return whether an `execution` part names the libraries and the CPU kernel of this machine.

    If it does, equal inputs must give equal bytes.
    """
    own = describe_execution()
    return all(own[name] == execution[name] for name in ("lockfile", "python", "kernel"))


@cache
def code_digest() -> str:
    """Return the SHA-256 of the names and contents of this package's files."""
    return folder_digest(*map(Path, letheon.__path__))


def folder_digest(*roots: Path) -> str:
    """Return the SHA-256 of the names and contents of the code files in these folders."""
    files = {
        path.relative_to(root).as_posix(): path
        for root in reversed(roots)
        for path in root.rglob("*")
        if path.suffix in _CODE_ENDINGS and path.is_file()
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        for part in (name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


@cache
def lockfile_digest() -> str:
    """Return the SHA-256 of the installed packages, as sorted lines ``name==version``.

    Names are normalized (PEP 503).
    """
    packages = {
        (re.sub(r"[-_.]+", "-", package.name).lower(), package.version)
        for package in distributions()
        if package.name
    }
    lines = sorted(f"{name}=={version}\n" for name, version in packages)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def kernel_code(blas: str) -> str:
    """Return the BLAS builds and kernels as a code, such as ``openblas:0.3.31:haswell``.

    NumPy and SciPy may each include a build; both affect results, so both are listed.
    """
    code = "+".join(part.strip().replace(" ", ":") for part in blas.lower().split(","))
    return code if is_code(code) else f"sha256:{hashlib.sha256(blas.encode()).hexdigest()}"


def list_fitted_steps(model: Any) -> dict[str, Any] | None:
    """Return the fitted steps of a pipeline or column transformer by their paths, None for others.

    Columns of a column transformer that are passed through are not steps.
    """
    if hasattr(model, "steps_"):
        return {f"fitted_.steps[{n}][1]": step for n, (_, step) in enumerate(model.steps_)}
    if hasattr(model, "transformers_"):
        parts = enumerate(model.transformers_)
        steps = {f"parts_[{n}].step": step for n, (_, step, _) in parts}
        return {place: step for place, step in steps.items() if hasattr(step, "get_params")}
    return None


def replay_of(model: Any) -> Replay:
    """Return how closely a fresh fit on the same rows with the same seed reproduces this model.

    *bitwise*: a forest or integers, which need neither BLAS nor libm. *bitwise-same-kernel*: any
    other exact method with kernels that add in a fixed order. *tolerance*: a method with noise that
    is not stored, with approximate removals, or with kernels that add in any order.
    """
    steps = list_fitted_steps(model)
    if steps is not None:
        learned = [step for step in steps.values() if hasattr(step, "forget")]
        # A step that does not learn is still computed by libraries.
        least: Replay = "bitwise" if len(learned) == len(steps) else "bitwise-same-kernel"
        return max((least, *map(replay_of, learned)), key=_STRENGTH.index)
    claim = model.guarantee_
    if claim.kind != "exact" or _ROUNDED in claim.assumptions:
        return "tolerance"
    replay: Replay = model.facts.replay
    return replay


def collect_facts(
    *,
    guarantee_before: Guarantee,
    after: Any,
    receipt: Receipt | None,
    rows: Rows,
    kind: str,
    seconds: float,
    retrain_seconds: float | None,
    training: Mapping[str, str],
    removed: int,
    since_retrain: int,
    test: TestFigures | None = None,
    reading: "Reading | None" = None,
    policy_digest: str | None = None,
    image: str | None = None,
    predictor: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the facts for the certificate of a removal that do not come from the database.

    Parameters
    ----------
    guarantee_before : Guarantee
        Guarantee of the model before the removal. If the new guarantee is weaker, the facts say so.
    after : fitted model
        The model without the rows.
    receipt : Receipt or None
        The receipt of `forget`, if it was called; it must have removed `removed` rows.
    rows : Rows
        The remaining rows.
    kind : {"erase", "retrain"}
        Whether the method removed the rows, or the model was retrained.
    seconds, retrain_seconds : float
        Seconds of this removal, and seconds of retraining on the remaining rows, estimated from
        the last timed retraining by the ratio of rows.
    training : mapping
        `rule`, `beacon` and `keyCommitment` of the training seed; other entries are not published.
    removed, since_retrain : int
        Number of rows that this certificate covers, and number of rows erased since the last
        retraining.
    test, reading, policy_digest
        Performance on a test set, reading of a monitor, and digest of its policy, if available.
    image : str, optional
        SHA-256 of the container image.
    predictor : mapping, optional
        Digest of the predictor file; see `describe_predictor`.
    """
    if receipt is not None and receipt.n_rows != removed:
        raise CertificateError(
            f"forget removed {receipt.n_rows} row(s), but the requests cover {removed}"
        )
    claim = make_claim(after, kind)
    is_retrain = kind == RETRAIN
    measures = measurements(
        claim.guarantee,
        is_retrain=is_retrain,
        is_proved=is_retrain or is_of_letheon(after),
        speedup=None if retrain_seconds is None or seconds <= 0 else retrain_seconds / seconds,
        test=test,
        reading=reading,
    )
    method = {
        "name": claim.method,
        "version": letheon.__version__,
        "definition": {"sha256": claim.definition},
        "parameters": method_parameters(after, claim.method),
        "trainingRandomness": {name: training[name] for name in _RANDOMNESS},
        "noise": _describe_noise(after, is_retrain=is_retrain),
    }
    decision = "retrained" if is_retrain else "keep"
    if not is_retrain and reading is not None and reading.decision == "retrain":
        decision = "retrain-due"
    return {
        "rows": removed,
        "live": len(rows),
        "method": method,
        "execution": describe_execution(image) | {"replay": replay_of(after)},
        "guarantee": guarantee_section(claim, since_retrain=0 if is_retrain else since_retrain),
        "measurements": measures,
        "monitor": {"decision": decision, "policy": {"sha256": policy_digest or NO_MONITOR}},
        "notClaimed": _list_limits(claim, guarantee_before, after, method, measures),
    } | ({} if predictor is None else {"predictor": dict(predictor)})


def method_parameters(model: Any, method: str) -> dict[str, str | bool]:
    """Return the parameters of a method; for retraining, the estimator and its parameters."""
    if method != RETRAIN:
        return describe_parameters(model)
    return {"estimator": class_code(model)} | describe_parameters(model, "estimator__")


def _describe_noise(model: Any, *, is_retrain: bool) -> Any:
    """Return the mechanism, the scale and a commitment to the noise; ``"none"`` without noise.

    The commitment comes from the model: ``SHA-256(salt | noise)`` with a salt in the model's file,
    so that an auditor can check it. If the model has no commitment, the salt is random and not
    stored.
    """
    noisy = get_accounted_part(model)
    scale = float(getattr(noisy, "sigma_", getattr(noisy, "sigma", 0.0)) or 0.0)
    if scale == 0.0 or (is_retrain and not noisy.facts.has_noise_at_fit):
        return "none"
    commitment = getattr(noisy, "noise_commitment_", None)
    if commitment is None:
        secret = vars(noisy).get("noise_", vars(noisy).get("source_"))
        commitment = hashlib.sha256(secrets.token_bytes(32) + state.encode(secret)).hexdigest()
    mechanism = noisy.facts.noise_code(noisy)
    return {"mechanism": mechanism, "scale": decimal(scale), "seedCommitment": commitment}


def reject_false_claims(model: Any, claims: Mapping[str, Any]) -> None:
    """Raise `SignerRefusedError` if a certificate claims more than its model permits.

    Raises
    ------
    SignerRefusedError
        A claim, a proved figure or the replay is too strong, or a limit is not stated.
    """
    method, is_retrain = claims["method"], claims["method"]["name"] == RETRAIN
    claim = make_claim(model, RETRAIN if is_retrain else "erase")
    reject_stronger_claims(claim, method, claims["guarantee"])
    replay, closest = claims["execution"]["replay"], replay_of(model)
    if replay not in _STRENGTH[_STRENGTH.index(closest) :]:
        raise SignerRefusedError(
            f"replay={replay!r} is stronger than {closest!r}, the strongest that this model permits"
        )
    is_proved, measures = is_retrain or is_of_letheon(model), claims["measurements"]
    proved = measurements(claim.guarantee, is_retrain=is_retrain, is_proved=is_proved)
    for name in PROPERTIES:
        if measures[name]["basis"] == "by-proof" and measures[name] != proved[name]:
            raise SignerRefusedError(
                f"measurements.{name} is stated as proved, but differs from the proved value"
            )
    limits = _list_limits(claim, claim.guarantee, model, method, measures)
    if claims["erasure"]["rows"] == 1:
        limits.append(ONE_PERSON)
    hidden = sorted(set(limits) - set(claims["notClaimed"]))
    if hidden:
        raise SignerRefusedError(
            "the certificate does not state all its limits: notClaimed must also list "
            f"{', '.join(hidden)}"
        )


def reject_false_predictor(model: Any, nonce: bytes, claims: Mapping[str, Any]) -> None:
    """Raise `SignerRefusedError` if a statement names another predictor than that of the model.

    Other libraries may compute other last bits, so the digests are compared only if the statement
    names the libraries of this machine.
    """
    stated = claims["model"].get("predictor")
    if stated is None or not has_same_libraries(claims["execution"]):
        return
    if stated != describe_predictor(model, nonce):
        raise SignerRefusedError(
            "the predictor in the statement differs from that of the published model"
        )


def _list_limits(
    claim: Claim,
    before: Guarantee,
    model: Any,
    method: Mapping[str, Any],
    measures: dict[str, dict[str, Any]],
) -> list[str]:
    """Return the codes of the properties that a certificate does not claim."""
    own, training = claim.guarantee, method["trainingRandomness"]
    has_own_seed = training["rule"] == CALLER_SEED
    limits = {
        "adaptive-requests": own.requests == "oblivious",
        "comparison-with-earlier-versions": own.releases != "every-version",
        "bound-on-what-is-left": own.kind == "empirical",
        "guarantee-of-the-version-before": KINDS.index(own.kind) > KINDS.index(before.kind),
        "saved-state-free-of-traces": bool(own.residual_state),
        "noise-secret": getattr(get_accounted_part(model), "noise_seed", None) is not None,
        "bitwise-rederivation": own.kind == "exact" and replay_of(model) == "tolerance",
        "method-checked-by-letheon": not is_of_letheon(model),
        # The nonce of the commitment is not stored, so reuse of noise cannot be detected.
        "noise-drawn-anew": method["noise"] != "none",
        "operator-chose-the-seed": has_own_seed,
        "beacon-not-witnessed": not has_own_seed and training["beacon"].startswith("checkpoint:"),
    }
    stated = [code for code, holds in limits.items() if holds]
    return [*_NEVER_CLAIMED, *stated, *list_unmeasured(measures)]
