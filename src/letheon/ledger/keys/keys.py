"""`Ledger.keys`: the signing keys, their rotation and revocation."""

from typing import Literal

from sqlalchemy import func, select

from letheon.exceptions import LedgerError
from letheon.ledger.certificates.certify import take_checkpoint
from letheon.ledger.core import Core
from letheon.ledger.db.events import require_own_log
from letheon.ledger.home import record_statements
from letheon.ledger.schemas import Key
from letheon.ledger.tables import certificates
from letheon.ledger.worker.agreement import advance_mark
from letheon.ledger.worker.apply import last_sequence
from letheon.verifier import MAX_INT, Trust


class Keys:
    """The signing keys of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> tuple[Key, ...]:
        """Return the signing keys, the one that strangers pin first."""
        trust = self._core.keys.trust()

        def state_of(keyid: str) -> Literal["current", "retired", "revoked"]:
            if trust.keys[keyid].revoked:
                return "revoked"
            return "current" if keyid == trust.current else "retired"

        return tuple(
            Key(
                keyid,
                key.public.hex(),
                state_of(keyid),
                key.first,
                None if key.last == MAX_INT else key.last,
            )
            for keyid, key in trust.keys.items()
        )

    def statements(self) -> tuple[bytes, ...]:
        """Return the signed statements that rotate and revoke keys, in their order."""
        return tuple(self._core.keys.statements())

    def trust(self) -> Trust:
        """Return the keys that follow from the first public key, as a stranger finds them."""
        return Trust.from_pinned(self._core.keys.root, self.statements())

    def rotate(self) -> str:
        """Sign with a new key from now on; return its id. The statement is signed by both."""
        core = self._core
        with core.database.transaction() as conn:
            # Numbers that are given out already are signed by the old key, whenever that is done.
            require_own_log(conn)
            core.keys.rotate(core.settings.name, last_sequence(conn))
            record_statements(core, conn)
        advance_mark(core)
        return core.keys.signer.keyid

    def revoke(self, keyid: str, *, after: int) -> None:
        """State that signatures of a key are not to be trusted after certificate `after`.

        Raises
        ------
        LedgerError
            Certificates that this key has to sign are not made yet; let a worker make them first.
        """
        core = self._core
        with core.database.transaction() as conn:
            require_own_log(conn)
            n_signed = conn.scalar(select(func.count()).select_from(certificates)) or 0
            if last_sequence(conn) > n_signed:
                raise LedgerError(
                    "a batch that was applied has no certificate yet, and its number belongs to an "
                    "older key; run `letheon batch apply` first. Nothing was revoked."
                )
            core.keys.revoke(core.settings.name, keyid, after)
            record_statements(core, conn)
        # The newest checkpoint must not be one that the revoked key has signed.
        take_checkpoint(core)
