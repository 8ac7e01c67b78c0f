"""What a certificate says about a model and its removal, computed beside the model.

The result goes into the database as canonical JSON: texts and whole numbers only. It has nothing
of an id, a row or a seed in it, and its figures have few digits. `rows` and `live` are for the
ledger itself, as are what was spent and how long it took: the certificate of a certified removal
leaves them out (`certificate_account`, `without_times`).
"""

import hashlib
import platform
import re
import secrets
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import letheon
from letheon import state
from letheon.data import Rows
from letheon.exceptions import CertificateError, SignerRefusedError
from letheon.guarantee import KINDS, Guarantee, Replay
from letheon.ledger.certificates.claims import (
    RETRAIN,
    Claim,
    claim_of,
    counted_part,
    guarantee_section,
    is_of_letheon,
    refuse_stronger,
)
from letheon.ledger.certificates.measures import (
    TestFigures,
    Timing,
    measurements,
    refuse_unproved,
    unmeasured,
)
from letheon.ledger.certificates.parameters import class_code, decimal, is_code, parameters_of
from letheon.receipt import Receipt

if TYPE_CHECKING:
    from letheon.monitor import Reading

_STRENGTH: tuple[Replay, ...] = ("bitwise", "bitwise-same-kernel", "tolerance")
_CODE_ENDINGS = frozenset({".py", ".pyi", ".so", ".pyd", ".md", ".mako", ".toml", ".json"})


def describe(image: str | None = None) -> dict[str, Any]:
    """Return the `execution` part of a certificate, without its `replay`.

    Parameters
    ----------
    image : str, optional
        SHA-256 of the container image, from the ledger's settings. Without one the platform's
        description is hashed.

    Returns
    -------
    dict
        `code` is the hash over the files of the installed package, `lockfile` over the sorted
        lines ``name==version`` of the environment. Every computation takes one thread.
    """
    return {
        "code": {"sha256": code_digest()},
        "lockfile": {"sha256": lockfile_digest()},
        "image": {"sha256": image if image else _platform_digest()},
        "python": platform.python_version(),
        "kernel": kernel_code(state.environment()["blas"]),
        "threads": 1,
    }


@cache
def code_digest() -> str:
    """Return the SHA-256 over names and contents of this package's files."""
    return folder_digest(*map(Path, letheon.__path__))


def folder_digest(*roots: Path) -> str:
    """Return the SHA-256 over names and contents of the code files below folders."""
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
    """Return the SHA-256 of the sorted lines ``name==version`` of all packages installed."""
    names = {(_normal(found.name), found.version) for found in distributions() if found.name}
    lines = sorted(f"{name}=={version}\n" for name, version in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _normal(name: str) -> str:
    """Return the one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _platform_digest() -> str:
    """Return a digest that machines of one kind share; it has no name of a machine in it."""
    python = (platform.python_implementation(), platform.python_version())
    parts = (platform.system(), platform.machine(), *platform.libc_ver(), *python)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def kernel_code(blas: str) -> str:
    """Return BLAS builds and kernels as one code, such as ``openblas:0.3.31:haswell``.

    NumPy and SciPy may bring a build each; both matter, so both are named.
    """
    code = "+".join(part.strip().replace(" ", ":") for part in blas.lower().split(","))
    return code if is_code(code) else f"sha256:{hashlib.sha256(blas.encode()).hexdigest()}"


def refuse_closer_replay(model: Any, said: str) -> None:
    """Refuse a statement that promises closer bytes than the model's method gives."""
    permitted = replay_of(model)
    if said not in _STRENGTH[_STRENGTH.index(permitted) :]:
        raise SignerRefusedError(f"replay={said!r} is closer than {permitted!r}")


def replay_of(model: Any) -> Replay:
    """Return how exactly a fresh fit on the same rows with the same seed gives this model again.

    *bitwise*: the forest's decisions need neither BLAS nor libm. *bitwise-same-kernel*: any other
    exact method with kernels that add in a fixed order. *tolerance*: noise that nobody keeps, an
    approximate removal, or kernels that add in any order.
    """
    steps = getattr(model, "steps_", None)
    if steps is not None:
        learned = [step for _, step in steps if hasattr(step, "forget")]
        # A step that learns nothing is still computed by libraries.
        least: Replay = "bitwise" if len(learned) == len(steps) else "bitwise-same-kernel"
        return max((least, *map(replay_of, learned)), key=_STRENGTH.index)
    claim = model.guarantee_
    if claim.kind != "exact" or "equal-but-for-rounding" in claim.assumptions:
        return "tolerance"
    replay: Replay = model.facts.replay
    return replay


# The policy of a model that nobody watches.
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


def facts_of(
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
) -> dict[str, Any]:
    """Return what the certificate of this removal says, but for what only the database knows.

    Parameters
    ----------
    guarantee_before : Guarantee
        What was claimed about the model before; a weaker claim now is noted.
    after : fitted model
        The model without the rows.
    receipt : Receipt or None
        What `forget` said, where the method was asked; it must have removed `removed` rows.
    rows : Rows
        The rows left.
    kind : {"erase", "retrain"}
        Whether rows were removed by the method, or all was trained afresh.
    seconds, retrain_seconds : float
        Time of this removal, and of a retrain on the rows left where one was timed (scaled by the
        ratio of rows).
    training : mapping
        `rule`, `beacon` and `keyCommitment` of the training seed; other entries are not published.
    removed, since_retrain : int
        Rows that this certificate covers, and rows erased since the last retrain.
    test, reading, policy_digest
        Performance on a test set, and what a monitor saw and by which tolerances, where there are
        any.
    image : str, optional
        SHA-256 of the container image.
    """
    if receipt is not None and receipt.n_rows != removed:
        raise CertificateError(f"{removed} row(s) were to go, and forget took {receipt.n_rows}")
    claim = claim_of(after, kind)
    is_retrain = kind == RETRAIN
    timing = Timing(seconds, retrain_seconds)
    measures = measurements(
        claim.guarantee,
        is_retrain=is_retrain,
        timing=timing,
        test=test,
        reading=reading,
        is_proved=is_retrain or is_of_letheon(after),
    )
    method = _method(after, claim, training)
    return {
        "rows": removed,
        "live": len(rows),
        "method": method,
        "execution": describe(image) | {"replay": replay_of(after)},
        "guarantee": guarantee_section(claim, since_retrain=0 if is_retrain else since_retrain),
        "measurements": measures,
        "monitor": {
            "decision": _decision(kind, reading),
            "policy": {"sha256": policy_digest or NO_MONITOR},
        },
        "notClaimed": [
            *_NEVER_CLAIMED,
            *_limits(claim, guarantee_before, after),
            *_noise_limits(method["noise"]),
            *_seed_limits(training),
            *unmeasured(measures),
        ],
    }


def _method(model: Any, claim: Claim, training: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": claim.method,
        "version": letheon.__version__,
        "definition": {"sha256": claim.definition},
        "parameters": method_parameters(model, claim.method),
        "trainingRandomness": {name: training[name] for name in _RANDOMNESS},
        "noise": _noise(model, is_retrain=claim.method == RETRAIN),
    }


def method_parameters(model: Any, method: str) -> dict[str, str | bool]:
    """Return the parameters of a method; those of a retrain are the estimator and its own."""
    if method != RETRAIN:
        return parameters_of(model)
    return {"estimator": class_code(model)} | parameters_of(model, "estimator__")


def _noise(model: Any, *, is_retrain: bool) -> Any:
    """Return mechanism, scale and a commitment to the noise, or ``"none"``.

    The commitment is that of the model, ``SHA-256(salt | noise)`` with a salt in its file, so that
    an auditor can check it. Methods without one get a random salt that is not kept.
    """
    noisy = counted_part(model)
    scale = float(getattr(noisy, "sigma_", getattr(noisy, "sigma", 0.0)) or 0.0)
    if scale == 0.0 or (is_retrain and not noisy.facts.has_noise_at_fit):
        return "none"
    commitment = getattr(noisy, "noise_commitment_", None)
    if commitment is None:
        secret = vars(noisy).get("noise_", vars(noisy).get("source_"))
        commitment = hashlib.sha256(secrets.token_bytes(32) + state.encode(secret)).hexdigest()
    mechanism = noisy.facts.noise_code(noisy)
    return {"mechanism": mechanism, "scale": decimal(scale), "seedCommitment": commitment}


def _decision(kind: str, reading: "Reading | None") -> str:
    if kind == RETRAIN:
        return "retrained"
    return "retrain-due" if reading is not None and reading.decision == "retrain" else "keep"


def refuse_boasts(model: Any, claims: Mapping[str, Any]) -> None:
    """Refuse a certificate that says more than the model that it is about gives.

    Raises
    ------
    SignerRefusedError
        A claim, a figure by proof or the replay is stronger, or a limit is not stated.
    """
    method, is_retrain = claims["method"], claims["method"]["name"] == RETRAIN
    claim = claim_of(model, RETRAIN if is_retrain else "erase")
    refuse_stronger(claim, method, claims["guarantee"])
    refuse_closer_replay(model, claims["execution"]["replay"])
    is_proved = is_retrain or is_of_letheon(model)
    measures = claims["measurements"]
    refuse_unproved(claim.guarantee, measures, is_retrain=is_retrain, is_proved=is_proved)
    limits = {
        *_NEVER_CLAIMED,
        *_limits(claim, claim.guarantee, model),
        *_noise_limits(method["noise"]),
        *_seed_limits(method["trainingRandomness"]),
        *unmeasured(measures),
        *([ONE_PERSON] if claims["erasure"]["rows"] == 1 else []),
    }
    hidden = sorted(limits - set(claims["notClaimed"]))
    if hidden:
        raise SignerRefusedError(f"notClaimed leaves out {', '.join(hidden)}")


def _limits(said: Claim, before: Guarantee, model: Any) -> list[str]:
    """Return what this kind of claim leaves open."""
    order, claim = KINDS, said.guarantee
    noisy = counted_part(model)
    found = {
        "adaptive-requests": claim.requests == "oblivious",
        "comparison-with-earlier-versions": claim.releases != "every-version",
        "bound-on-what-is-left": claim.kind == "empirical",
        "guarantee-of-the-version-before": order.index(claim.kind) > order.index(before.kind),
        "saved-state-free-of-traces": bool(claim.residual_state),
        "noise-secret": getattr(noisy, "noise_seed", None) is not None,
        "bitwise-rederivation": claim.kind == "exact" and replay_of(model) == "tolerance",
        "method-checked-by-letheon": not is_of_letheon(model),
    }
    return [code for code, holds in found.items() if holds]


def _noise_limits(noise: Any) -> list[str]:
    """Nobody can open a commitment whose nonce is gone, so that noise used twice never shows."""
    return [] if noise == "none" else ["noise-drawn-anew"]


def _seed_limits(training: Mapping[str, str]) -> list[str]:
    if training["rule"] == CALLER_SEED:
        return ["operator-chose-the-seed"]
    return ["beacon-not-witnessed"] if training["beacon"].startswith("checkpoint:") else []
