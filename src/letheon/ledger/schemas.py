"""Names and codes: what may stand in settings, events, checkpoints and certificates.

A name is chosen by somebody: of a ledger, a model, a tenant, a data set, a store. It has to fit
everywhere, so there is one pattern. It leaves out ``/`` (a certificate joins tenant and model with
it), ``@`` (it joins model and number, and marks an address of a person) and ``+`` (it would end
the name in the signature line of a checkpoint).
"""

import re
from typing import Any

__all__ = ["CODE", "NAME", "is_code", "require_name"]

NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")
"""What somebody may choose."""

CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")
"""What may stand in an event: names, codes, digests, versions, opaque ids."""


def is_code(text: str) -> bool:
    """Whether a text may stand in an event: it can be no address and no sentence."""
    return CODE.fullmatch(text) is not None


def require_name(what: str, text: Any) -> str:
    """Return a name that fits everywhere, or raise before anything is made with it."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise ValueError(
            f"{what}={text!r} cannot stand in a certificate: use 1 to 63 of a-z, 0-9 and ._:-, and "
            "begin with a letter or digit"
        )
    return text
