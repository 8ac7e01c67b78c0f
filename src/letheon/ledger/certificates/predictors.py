"""The predictor of a version as a file, and its digest in the certificate.

The file is 32 bytes followed by the canonical bytes of the predictor; the certificate states the
SHA-256 of both. The 32 bytes are derived from the nonce of the model's blob. So the digest does not
help to test guesses of a removed row, a holder of the file learns nothing about the nonce of the
model, and when the model's blob is destroyed the digest cannot be computed again.
"""

import hashlib
from typing import Any

from letheon import state

_NONE = {"reason": "no-predictor"}
_PURPOSE = b"letheon/predictor-nonce/v1"


def make_predictor_file(model: Any, nonce: bytes) -> bytes:
    """Return the predictor file of a model whose blob begins with these 32 bytes.

    Raises
    ------
    TypeError
        The model has no predictor.
    """
    blinding = hashlib.sha256(_PURPOSE + nonce).digest()
    return blinding + state.encode(model.predictor())


def describe_predictor(model: Any, nonce: bytes) -> dict[str, str]:
    """Return the digest of the predictor file for a certificate, or why there is none."""
    try:
        return {"sha256": hashlib.sha256(make_predictor_file(model, nonce)).hexdigest()}
    except Exception:  # noqa: BLE001 (an error of a predictor must not prevent an erasure)
        return dict(_NONE)
