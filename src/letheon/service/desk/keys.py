"""The keys that certificates are signed with."""

from typing import Literal

from pydantic import Field

from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._schemas import Out

__all__ = ["KeyOut", "KeysOut", "keys"]


class KeyOut(Out):
    """A key that certificates are, or were, signed with."""

    keyid: str = Field(description="SHA-256 of the public key.")
    public: str = Field(description="The public key, in hexadecimal digits.")
    state: Literal["current", "retired", "revoked"]
    first: int = Field(ge=0, description="The first certificate that it may sign.")
    last: int | None = Field(description="The last one; null for the current key.")


class KeysOut(Out):
    """The keys of the ledger, the one that strangers pin first."""

    ledger: str
    pinned: str = Field(description="The first public key: what verifies everything.")
    keys: list[KeyOut]
    statements: list[str] = Field(
        description="Rotations and revocations in order: envelopes, each signed by the key before."
    )


def keys(context: Context, who: Principal) -> KeysOut:  # noqa: ARG001 - public keys are everybody's
    """Return the public keys."""
    ledger = context.ledger
    found = ledger.keys()
    return KeysOut(
        ledger=ledger.name,
        pinned=ledger.public_key,
        keys=[KeyOut.model_validate(one) for one in found],
        statements=[one.decode() for one in ledger._core.keys.statements()],
    )
