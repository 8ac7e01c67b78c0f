"""The keys that certificates are signed with."""

from typing import Literal

from pydantic import Field

from letheon.ledger.models.info import KeyInfo
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._schemas import Out

__all__ = ["KeyOut", "KeysOut", "keys"]


class KeyOut(Out):
    """A key that certificates are, or were, signed with."""

    keyid: str = Field(description="SHA-256 of the public key.")
    public: str = Field(description="The public key, in hexadecimal digits.")
    state: Literal["current", "retired", "revoked"]
    first: int | None = Field(
        description="The first certificate that it may sign; null for a tenant's token."
    )
    last: int | None = Field(
        description="The last one; null for the current key, and for a tenant's token."
    )


class KeysOut(Out):
    """The keys of the ledger, the one that strangers pin first."""

    ledger: str
    pinned: str = Field(description="The first public key: what verifies everything.")
    keys: list[KeyOut]
    statements: list[str] = Field(
        description="Rotations and revocations in order: envelopes, each signed by the key before."
    )


def keys(context: Context, who: Principal) -> KeysOut:
    """Return the public keys; what they may sign counts the certificates of all tenants."""
    ledger = context.ledger
    found = ledger.keys()
    return KeysOut(
        ledger=ledger.name,
        pinned=ledger.public_key,
        keys=[_out(one, is_whole=who.tenant is None) for one in found],
        statements=[one.decode() for one in ledger._core.keys.statements()],
    )


def _out(info: KeyInfo, *, is_whole: bool) -> KeyOut:
    shown = KeyOut.model_validate(info)
    return shown if is_whole else shown.model_copy(update={"first": None, "last": None})
