"""What a guarantee means, in sentences for people who read neither codes nor theorems."""

from collections.abc import Mapping, Sequence
from typing import Any

_KINDS = {
    "exact": (
        "Exact: the model is what a fresh training on the rows left gives, so nothing of the "
        "erased rows is in it."
    ),
    "certified": (
        "Certified: nobody can tell the model from one trained afresh on the rows left, but for "
        "a factor of e^{epsilon} in any probability and a chance of {delta}."
    ),
    "empirical": (
        "Empirical: the method removed the rows, and how close the model is to one trained afresh "
        "is measured or estimated. No bound is proved."
    ),
}
_REQUESTS = {
    "oblivious": "It holds for people who ask without regard to what the model says",
    "adaptive": "It holds also for people who ask after seeing the model",
}
_RELEASES = {
    "labels-only": "towards whoever gets predicted labels only.",
    "latest-only": "towards whoever sees the newest version and kept no earlier one.",
    "every-version": "towards whoever has seen every version.",
}

ASSUMPTIONS: Mapping[str, str] = {
    "seed-independent-of-requests": "The seed was fixed before anybody knew who will ask.",
    "same-libraries-and-cpu-kernel": "Libraries and processor kernel are those of the training.",
    "same-libraries-and-device": "Libraries and device are those of the training.",
    "equal-but-for-rounding": "A fresh training is equal but for rounding.",
    "backbone-never-saw-the-rows": "The frozen backbone was trained without these rows.",
    "strongly-convex": "The loss is strongly convex; it holds by construction.",
    "locally-convex": "The loss is convex near the path of training; this is not checked.",
    "intercept-regularised": "The intercept is regularised as the other weights are.",
    "regulariser-per-sample": "A retrain keeps the regulariser per row.",
    "regulariser-in-total": "A retrain keeps the regulariser in total.",
    "noise-secret": "Nobody who sees the model knows the noise.",
    "noise-fresh-and-secret": "Noise is drawn anew for each release, and nobody knows it.",
    "noise-to-rounding": "Noise computed in double precision counts as exact.",
    "residual-bounded-for-all-noise": "What a removal leaves varies slowly with the noise.",
    "retraining-converges": "A retrain ends as near its optimum as its stop rule says.",
    "rows-bounded": "No row is longer than the stated norm; it is checked or clipped.",
    "row-count-public": "How many rows are held and were changed is not hidden.",
    "state-secret": "Nobody sees the sealed parameters without noise.",
    "few-rows-leave": "Few rows leave, compared with those that stay.",
    "step-size-kept": "Step size and batches are those of the last training.",
    "slots-kept": "Rows keep their places in the order of training.",
    "residual-memory-decays": "What a block of rows left in the net decays from block to block.",
}
"""What must hold for a claim, by code."""

NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": (
        "That nobody keeps a copy in a place that the ledger does not know."
    ),
    "backups-expired": "That backups have expired; the purge attestation lists them.",
    "downstream-copies": "Anything about what others made of earlier versions.",
    "purge-of-earlier-versions": "The purge: it comes later, with an attestation of its own.",
    "hyper-parameters-chosen-without-erased-rows": (
        "That hyper-parameters were chosen without looking at the erased rows."
    ),
    "rows-are-those-of-the-requests": (
        "That the rows that left are those of the people who asked: leaves are salted, so no "
        "reader sees whose they were."
    ),
    "every-request-recorded": (
        "That every request was recorded: the ledger knows those that reached it."
    ),
    "adaptive-requests": "Anything about people who choose to leave after looking at the model.",
    "comparison-with-earlier-versions": "Anything towards an observer who kept an earlier version.",
    "bound-on-what-is-left": "A bound: the guarantee is empirical.",
    "guarantee-of-the-version-before": "What the version before claimed; this claim is weaker.",
    "saved-state-free-of-traces": (
        "Anything about the saved state besides what is published: it may hold traces of "
        "erased rows, which the definition names."
    ),
    "noise-drawn-anew": (
        "That noise was never used before: the nonce of its commitment is kept by nobody, so it "
        "cannot be opened."
    ),
    "method-checked-by-letheon": (
        "That the method does what it declares: its class is not letheon's, and its claims are "
        "its own."
    ),
    "noise-secret": "That the noise is secret: a seed for it was given.",
    "bitwise-rederivation": "That a fresh fit gives the same bytes.",
    "operator-chose-the-seed": (
        "That the seed of training was settled before the erased rows were known."
    ),
    "beacon-not-witnessed": "That somebody besides the operator saw the beacon in time.",
    "batch-of-one": (
        "That the certificate hides among many whom it is about: it is about one person or one row."
    ),
    "efficiency-not-measured": "A speed-up.",
    "effectiveness-not-measured": "A difference of performance.",
    "consistency-not-measured": "A distance of parameters or answers.",
    "certifiability-not-measured": "How much is left.",
}
"""What a reader must not take from a certificate, by code."""

PURGE_NOT_CLAIMED: Mapping[str, str] = {
    "no-copy-kept-outside-inventory": NOT_CLAIMED["no-copy-kept-outside-inventory"],
    "downstream-copies": NOT_CLAIMED["downstream-copies"],
    "saved-state-free-of-traces": NOT_CLAIMED["saved-state-free-of-traces"],
    "memory-of-running-processes": "Anything about the memory of programs that were running.",
    "storage-media-remanence": (
        "That a disk keeps no old blocks; they are sealed, and the key is gone."
    ),
    "keyed-tags-dropped": (
        "That the keyed tags are gone by which a repeated request is recognised."
    ),
    "recipients-told-later": "Anything about recipients who are told after the purge.",
    "backups-expired": "That backups have expired: the stores say by when.",
    "search-for-ids-that-are-words-of-the-ledger": (
        "A search for ids that are words or numbers of the ledger itself; these were left out."
    ),
    "search-for-rows-that-were-damaged": "A search for rows that could not be read any more.",
    "copies-of-rows-without-their-ids": (
        "That no copy of a row is left without its id, or in other units or formats."
    ),
    "ids-in-other-spellings": (
        "That no id is left in another spelling: as a part of a longer word, in other letters, "
        "abbreviated or encoded."
    ),
    "files-not-searched": (
        "That files which could not be searched hold nothing of the erased: of an unreadable kind, "
        "damaged, too large, or with values that may be a short id or not."
    ),
    "search-for-short-ids-in-longer-texts-and-own-files": (
        "A search for short ids inside texts that are no table and in the ledger's own files: "
        "there they are encrypted or keyed, and only salts, rows and longer ids were searched for."
    ),
}
"""What a purge attestation leaves open, by code."""


def guarantee_words(guarantee: Mapping[str, Any]) -> str:
    """Return what the `guarantee` part of a certificate means.

    Kind and bound, for whom it holds, and towards whom; assumptions have words of their own.
    """
    kind = _KINDS[guarantee["kind"]].format(
        epsilon=guarantee.get("epsilon", "?"), delta=guarantee.get("delta", "?")
    )
    return f"{kind} {_REQUESTS[guarantee['requests']]}, {_RELEASES[guarantee['releases']]}"


def words_of(codes: Sequence[str], table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each code with its words; a code of somebody else's method speaks for itself."""
    return [(code, table.get(code, code.replace("-", " "))) for code in codes]
