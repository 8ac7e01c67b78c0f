"""What can be done about receipts; a part of `Ledger`."""

from letheon.ledger import _receipts
from letheon.ledger._core import Core
from letheon.ledger._receipt_codes import ReceiptCode, new_private_key, open_sealed
from letheon.ledger._receipts import Coverage
from letheon.ledger._requests import found
from letheon.verifier import Refused

__all__ = ["Receipts"]


class Receipts:
    """Codes, sealed receipts, and what covers them; see `Ledger`."""

    _core: Core

    def new_receipt_code(self, request_id: str, *, tenant: str | None = None) -> str:
        """Return a new receipt code for a request of one person; an older one opens nothing then.

        Raises
        ------
        RequestStateError
            The request was applied or ended already, or names several people.
        """
        code = ReceiptCode(request_id, new_private_key())
        _receipts.set_key(self._core, request_id, code.public, tenant=tenant)
        return str(code)

    def set_receipt_key(
        self, request_id: str, public_key: str, *, tenant: str | None = None
    ) -> None:
        """Let the receipt of a request be sealed to this X25519 public key; see `request`."""
        _receipts.set_key(self._core, request_id, public_key, tenant=tenant)

    def receipt_key(self, request_id: str, *, tenant: str | None = None) -> str | None:
        """Return the public key that the receipt of a request is, or will be, sealed to."""
        with self._core.database.reading() as conn:
            found(conn, request_id, tenant=tenant)
        return _receipts.receipt_key_of(self._core, request_id)

    def sealed_receipt(self, request_id: str, public_key: str) -> bytes | None:
        """Return the receipt of a request, sealed to this public key; None if there is none."""
        return _receipts.sealed_receipt(self._core, request_id, public_key)

    def opened_receipt(self, code: str) -> bytes | None:
        """Return the receipt that a code opens, without its salts; None if there is none.

        Raises
        ------
        Refused
            The text is no code, or has a typing error.
        """
        parsed = ReceiptCode.parse(code)
        sealed = _receipts.sealed_receipt(self._core, parsed.request, parsed.public)
        try:
            return None if sealed is None else open_sealed(parsed, sealed).receipt
        except Refused:
            return None

    def coverage(self, receipt: bytes) -> Coverage | None:
        """Return what the certificate says that covers a receipt without salts, or None.

        It shows that the receipt's commitments stood in the data set before and that their slots
        are empty after, under a certificate that this ledger signed; see
        `letheon.verifier.check_receipt_commitment`.
        """
        return _receipts.coverage(self._core, receipt)
