"""Explanations of guarantees and codes in certificates for readers without technical background.

The pages of the service and the HTML audit report use these tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "exact": (
        "Exact: the model is identical to one trained only on the remaining rows, so it contains "
        "nothing from the erased rows."
    ),
    "certified": (
        "Certified: an observer cannot reliably distinguish the model from one trained without "
        "the erased rows. The probability of any observation differs by at most a factor of "
        "e^{epsilon}, plus {delta}."
    ),
    "empirical": (
        "Empirical: the method removed the rows. How close the model is to one trained without "
        "them was measured or estimated; no bound is proved."
    ),
}
_REQUESTS = {
    "oblivious": "This holds for requests that do not depend on the published model",
    "adaptive": "This holds even for requests that depend on the published model",
}
_RELEASES = {
    "labels-only": "and for observers who see only predicted labels.",
    "latest-only": "and for observers who see only the newest version and kept no earlier version.",
    "every-version": "and for observers who see every version.",
}

ASSUMPTIONS: Mapping[str, str] = {
    "seed-independent-of-requests": (
        "The training seed was fixed before the erasure requests were known."
    ),
    "grid-independent-of-rows": (
        "The grid, the scoring, the folds and the size of the sample of the hyper-parameter "
        "search were chosen without these rows."
    ),
    "same-libraries-and-cpu-kernel": "Libraries and CPU kernel are the same as in training.",
    "same-libraries-and-device": "Libraries and device are the same as in training.",
    "equal-but-for-rounding": "Retraining gives the same model, except for rounding.",
    "backbone-never-saw-the-rows": "The frozen backbone was trained without these rows.",
    "strongly-convex": "The loss is strongly convex; this holds by construction.",
    "locally-convex": "The loss is convex near the training path; this is not checked.",
    "intercept-regularised": "The intercept is regularised like the other weights.",
    "regulariser-per-sample": "A retrained model has the same regularisation per row.",
    "regulariser-in-total": "A retrained model has the same total regularisation.",
    "noise-secret": "Observers of the model do not know the noise.",
    "noise-fresh-and-secret": "New noise is drawn for each release and kept secret.",
    "noise-to-rounding": "Rounding errors of the noise in double precision are ignored.",
    "residual-bounded-for-all-noise": "The residual of a removal varies slowly with the noise.",
    "retraining-converges": "Retraining reaches its optimum, within its tolerance.",
    "rows-bounded": "No row exceeds the stated norm; rows are checked or clipped.",
    "row-count-public": "The numbers of stored and changed rows are public.",
    "state-secret": "The encrypted parameters before noise stay secret.",
    "few-rows-leave": "The removed rows are few compared with the remaining rows.",
    "step-size-kept": "Step size and batches are the same as in the last training.",
    "slots-kept": "Rows keep their positions in the order of training.",
    "residual-memory-decays": (
        "The influence of a block of rows on the network decays from block to block."
    ),
}
"""What must hold for a claim, by code."""

NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": "That no copy exists outside the registered stores.",
    "backups-expired": "That backups have expired. The purge attestation lists them.",
    "downstream-copies": "Anything about copies or earlier versions that others have.",
    "purge-of-earlier-versions": (
        "That earlier versions have been purged. The purge follows later, with its own attestation."
    ),
    "hyper-parameters-chosen-without-erased-rows": (
        "That hyper-parameters were chosen without the erased rows."
    ),
    "rows-are-those-of-the-requests": (
        "That the removed rows belong to the data subjects of the requests. Rows are recorded as "
        "salted hashes, which do not show whose they are."
    ),
    "every-request-recorded": (
        "That every request was recorded. The ledger contains only requests that reached it."
    ),
    "adaptive-requests": "Anything about requests that depend on the published model.",
    "comparison-with-earlier-versions": (
        "Anything about an observer who compares this version with an earlier one."
    ),
    "bound-on-what-is-left": "A bound on what remains of the erased rows.",
    "guarantee-of-the-version-before": (
        "The guarantee of the previous version. The guarantee of this version is weaker."
    ),
    "saved-state-free-of-traces": (
        "Anything about saved state that is not published. It may contain traces of erased rows; "
        "the method definition describes them."
    ),
    "noise-drawn-anew": (
        "That the noise was never used before. The nonce of its commitment is not kept, so this "
        "cannot be checked."
    ),
    "method-checked-by-letheon": (
        "That the method does what it declares. Its class is not part of letheon, and letheon has "
        "not checked its claims."
    ),
    "noise-secret": "That the noise is secret: it was drawn from a given seed.",
    "bitwise-rederivation": "That a fresh fit gives the same bytes.",
    "operator-chose-the-seed": (
        "That the training seed was fixed before the erased rows were known. The operator chose it."
    ),
    "beacon-not-witnessed": (
        "That a third party saw the random beacon of the training seed before the training."
    ),
    "batch-of-one": (
        "That the certificate cannot be linked to a person: it covers only one person or one row."
    ),
    "efficiency-not-measured": "Anything about the speed-up over retraining.",
    "effectiveness-not-measured": (
        "Anything about the difference in performance from a retrained model."
    ),
    "consistency-not-measured": (
        "Anything about the distance of parameters or predictions from a retrained model."
    ),
    "certifiability-not-measured": "Anything about how much of the erased rows remains.",
}
"""What a certificate does not claim, by code."""

PURGE_NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": NOT_CLAIMED["no-copy-kept-outside-inventory"],
    "downstream-copies": NOT_CLAIMED["downstream-copies"],
    "saved-state-free-of-traces": NOT_CLAIMED["saved-state-free-of-traces"],
    "memory-of-running-processes": "Anything about the memory of programs that were running.",
    "storage-media-remanence": (
        "That disks contain no old blocks. Such blocks are encrypted, and their key is deleted."
    ),
    "keyed-tags-dropped": "That the keyed tags that identify repeated requests are deleted.",
    "recipients-told-later": "Anything about recipients who are notified after the purge.",
    "backups-expired": "That backups have expired. The attestation states when they expire.",
    "search-for-ids-that-are-words-of-the-ledger": (
        "A search for ids that are also words or numbers of the ledger. They were skipped."
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
        "That no erased data is in files that could not be searched: files that are unreadable, "
        "damaged or too large, or that contain a value that may be a short id."
    ),
    "search-for-short-ids-in-longer-texts-and-own-files": (
        "A search for short ids in free text and in the ledger's own files, where ids are "
        "encrypted or keyed. Only salts, rows and longer ids were searched for there."
    ),
}
"""What a purge attestation does not claim, by code."""


def explain_guarantee(guarantee: Mapping[str, Any]) -> str:
    """Return the meaning of the `guarantee` part of a certificate in sentences.

    The sentences explain the kind and the bound of the guarantee, and the requests and observers
    for which it holds. `explain_codes` explains its assumptions.
    """
    kind = _KINDS[guarantee["kind"]].format(
        epsilon=guarantee.get("epsilon", "?"), delta=guarantee.get("delta", "?")
    )
    return f"{kind} {_REQUESTS[guarantee['requests']]}, {_RELEASES[guarantee['releases']]}"


def explain_codes(codes: Sequence[str], table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each code with its explanation; an unknown code is shown as separate words."""
    return [(code, table.get(code, code.replace("-", " "))) for code in codes]
