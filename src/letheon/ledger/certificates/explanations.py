"""Explanations of guarantees and codes in certificates, for readers without a technical background.

The pages of the service and the HTML audit report use the same tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "exact": (
        "Exact: the model is the one that training on the remaining rows gives, so it contains "
        "nothing of the erased rows."
    ),
    "certified": (
        "Certified: the model cannot be distinguished from one trained without the erased rows, "
        "except for a factor of e^{epsilon} in any probability and a probability of {delta}."
    ),
    "empirical": (
        "Empirical: the method removed the rows. How close the model is to one trained without "
        "them is measured or estimated, and no bound is proved."
    ),
}
_REQUESTS = {
    "oblivious": "It holds for requests that do not depend on the published model",
    "adaptive": "It holds even for requests that depend on the published model",
}
_RELEASES = {
    "labels-only": "and for observers who see only predicted labels.",
    "latest-only": "and for observers who see only the newest version and kept no earlier one.",
    "every-version": "and for observers who see every version.",
}

ASSUMPTIONS: Mapping[str, str] = {
    "seed-independent-of-requests": (
        "The training seed was fixed before the erasure requests were known."
    ),
    "same-libraries-and-cpu-kernel": (
        "The libraries and the CPU kernel are those used for the training."
    ),
    "same-libraries-and-device": "The libraries and the device are those used for the training.",
    "equal-but-for-rounding": "A fresh training gives the same model except for rounding.",
    "backbone-never-saw-the-rows": "The frozen backbone was trained without these rows.",
    "strongly-convex": "The loss is strongly convex; this holds by construction.",
    "locally-convex": "The loss is convex near the training path; this is not checked.",
    "intercept-regularised": "The intercept is regularised like the other weights.",
    "regulariser-per-sample": "A retrain keeps the regularisation per row.",
    "regulariser-in-total": "A retrain keeps the total regularisation.",
    "noise-secret": "Observers of the model do not know the noise.",
    "noise-fresh-and-secret": "Noise is drawn newly for each release and kept secret.",
    "noise-to-rounding": "Noise computed in double precision counts as exact.",
    "residual-bounded-for-all-noise": "The residual of a removal varies slowly with the noise.",
    "retraining-converges": "A retrain ends as close to its optimum as its stopping rule says.",
    "rows-bounded": "No row exceeds the stated norm; rows are checked or clipped.",
    "row-count-public": "The number of stored and changed rows is not hidden.",
    "state-secret": "The encrypted parameters before noise stay secret.",
    "few-rows-leave": "Few rows are removed, compared with the remaining ones.",
    "step-size-kept": "Step size and batches are those of the last training.",
    "slots-kept": "Rows keep their positions in the order of training.",
    "residual-memory-decays": (
        "The influence of a block of rows on the network decays from block to block."
    ),
}
"""What must hold for a claim, by code."""

NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": (
        "That there is no copy in a place that the ledger does not know."
    ),
    "backups-expired": "That backups have expired. The purge attestation lists them.",
    "downstream-copies": "Anything about uses of earlier versions by others.",
    "purge-of-earlier-versions": (
        "That earlier versions are purged. The purge follows later, with its own attestation."
    ),
    "hyper-parameters-chosen-without-erased-rows": (
        "That hyper-parameters were chosen without the erased rows."
    ),
    "rows-are-those-of-the-requests": (
        "That the removed rows belong to the data subjects of the requests. Rows are recorded as "
        "salted hashes, which do not show whose they are."
    ),
    "every-request-recorded": (
        "That every request was recorded. The ledger knows only those that reached it."
    ),
    "adaptive-requests": "Anything about requests that depend on the published model.",
    "comparison-with-earlier-versions": (
        "Anything about an observer who kept an earlier version and compares."
    ),
    "bound-on-what-is-left": "A bound on what remains of the rows: the guarantee is empirical.",
    "guarantee-of-the-version-before": (
        "The guarantee of the version before. The guarantee of this version is weaker."
    ),
    "saved-state-free-of-traces": (
        "Anything about saved state that is not published. It may contain traces of erased rows, "
        "which the definition of the method names."
    ),
    "noise-drawn-anew": (
        "That the noise was never used before. The nonce of its commitment is not kept, so this "
        "cannot be checked."
    ),
    "method-checked-by-letheon": (
        "That the method does what it declares. Its class is not part of letheon, and its claims "
        "are its own."
    ),
    "noise-secret": "That the noise is secret: a seed for it was set.",
    "bitwise-rederivation": "That a fresh fit gives the same bytes.",
    "operator-chose-the-seed": (
        "That the training seed was fixed before the erased rows were known. The operator chose it."
    ),
    "beacon-not-witnessed": (
        "That anyone besides the operator saw the random beacon of the training seed in time."
    ),
    "batch-of-one": (
        "That the certificate does not point to one person: it is about one person or one row."
    ),
    "efficiency-not-measured": "A speed-up compared with retraining.",
    "effectiveness-not-measured": "A difference in performance.",
    "consistency-not-measured": "A distance of parameters or predictions from a retrained model.",
    "certifiability-not-measured": "How much of the erased rows remains.",
}
"""What a certificate does not claim, by code."""

PURGE_NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": NOT_CLAIMED["no-copy-kept-outside-inventory"],
    "downstream-copies": NOT_CLAIMED["downstream-copies"],
    "saved-state-free-of-traces": NOT_CLAIMED["saved-state-free-of-traces"],
    "memory-of-running-processes": "Anything about the memory of programs that were running.",
    "storage-media-remanence": (
        "That a disk contains no old blocks. They are encrypted, and the key is deleted."
    ),
    "keyed-tags-dropped": (
        "That the keyed tags are deleted by which a repeated request is recognised."
    ),
    "recipients-told-later": "Anything about recipients who are notified after the purge.",
    "backups-expired": "That backups have expired. The stores state by when they expire.",
    "search-for-ids-that-are-words-of-the-ledger": (
        "A search for ids that are also words or numbers of the ledger itself. They were skipped."
    ),
    "search-for-rows-that-were-damaged": "A search for rows that could no longer be read.",
    "copies-of-rows-without-their-ids": (
        "That there is no copy of a row without its id, or in other units or formats."
    ),
    "ids-in-other-spellings": (
        "That no id remains in another spelling: as part of a longer word, in other letters, "
        "abbreviated or encoded."
    ),
    "files-not-searched": (
        "That files which could not be searched contain no erased data: unreadable, damaged or "
        "too large files, or files with a value that may or may not be a short id."
    ),
    "search-for-short-ids-in-longer-texts-and-own-files": (
        "A search for short ids in texts that are not tables and in the ledger's own files. There "
        "ids are encrypted or keyed; only salts, rows and longer ids were searched for."
    ),
}
"""What a purge attestation does not claim, by code."""


def explain_guarantee(guarantee: Mapping[str, Any]) -> str:
    """Return the meaning of the `guarantee` part of a certificate in sentences.

    They cover kind and bound, and the requests and observers for which it holds. Assumptions are
    explained by `explain_codes`.
    """
    kind = _KINDS[guarantee["kind"]].format(
        epsilon=guarantee.get("epsilon", "?"), delta=guarantee.get("delta", "?")
    )
    return f"{kind} {_REQUESTS[guarantee['requests']]}, {_RELEASES[guarantee['releases']]}"


def explain_codes(codes: Sequence[str], table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each code with its explanation; an unknown code is spelled out as words."""
    return [(code, table.get(code, code.replace("-", " "))) for code in codes]
