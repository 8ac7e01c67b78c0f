"""V4 and V5: whether the newest certificate states the predictor of the audited model."""

from typing import Any

from letheon.audit._bundle import AuditedModel, LevelResult
from letheon.ledger.certificates.facts import has_same_libraries
from letheon.ledger.certificates.predictors import describe_predictor


def check_predictor(audited: AuditedModel, model: Any, level: str) -> LevelResult | None:
    """Return a result of `level` if the newest certificate does not state the model's predictor.

    Return None if it does, or if no certificate of the model makes a statement about a predictor.
    """
    entries = [each.predicate["model"].get("predictor") for each in audited.certificates]
    stated = entries[-1]
    if entries.count(None) == len(entries) or stated == describe_predictor(model, audited.nonce):
        return None
    if stated and "sha256" in stated and not has_same_environment(audited):
        reason = (
            "the predictor computed here differs from the certificate, which names other libraries "
            "or another CPU kernel; repeat the audit with those"
        )
        return LevelResult(level, audited.name, "skipped", reason)
    number = audited.newest.sequence
    reason = f"certificate {number} states a predictor that is not the one of the model"
    if stated is None:
        reason = f"certificate {number} states no predictor, and an earlier one of the model does"
    return LevelResult(level, audited.name, "fail", reason)


def has_same_environment(audited: AuditedModel) -> bool:
    """Return whether the certificate names the libraries and the CPU kernel of this machine."""
    return has_same_libraries(audited.newest.predicate["execution"])
