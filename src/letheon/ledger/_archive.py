"""What was done, for whoever looks it up: batches, certificates, the log; a part of `Ledger`."""

from letheon.ledger._adopt import Adoption, adopt
from letheon.ledger._agreement import differences
from letheon.ledger._batch_list import BatchInfo, BatchPage, batch_info, batch_page
from letheon.ledger._certificate_list import (
    CertificateInfo,
    CertificatePage,
    certificate_info,
    certificate_page,
    transition_proof,
)
from letheon.ledger._core import Core
from letheon.ledger._log_reading import LogConsistency, LogInclusion, LogPage, LogReader

__all__ = ["Archive"]


class Archive:
    """What can be looked up, page by page; see `Ledger`."""

    _core: Core
    _log_reader: LogReader | None = None

    def batches(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> BatchPage:
        """Return one page of batches, newest first; those of a tenant or a model if given."""
        return batch_page(self._core, tenant=tenant, model=model, after=after, limit=limit)

    def batch(self, batch_id: str, *, tenant: str | None = None) -> BatchInfo:
        """Return one batch, or raise `LedgerMissingError`."""
        return batch_info(self._core, batch_id, tenant=tenant)

    def certificate_infos(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> CertificatePage:
        """Return one page of what certificates say in short, newest first."""
        return certificate_page(self._core, tenant=tenant, model=model, after=after, limit=limit)

    def certificate_info(self, sequence: int, *, tenant: str | None = None) -> CertificateInfo:
        """Return what one certificate says in short, or raise `LedgerMissingError`."""
        return certificate_info(self._core, sequence, tenant=tenant)

    def proof(self, sequence: int) -> bytes:
        """Return the transition proof that certificate `sequence` names."""
        return transition_proof(self._core, sequence)

    def log_entries(self, *, after: str | None = None, limit: int = 50) -> LogPage:
        """Return one page of the log, oldest first: events that have a place in its tree."""
        return self._log.entries(after=after, limit=limit)

    def log_inclusion(self, index: int, *, size: int | None = None) -> LogInclusion:
        """Prove that the event in place `index` is in the log, as it is or was at a size.

        Raises
        ------
        ValueError
            The log has no such place, or never had that size.
        """
        return self._log.inclusion(index, size)

    def log_consistency(self, size1: int, size2: int | None = None) -> LogConsistency:
        """Prove that the log of `size1` events is the beginning of that of `size2`, or of all."""
        return self._log.consistency(size1, size2)

    @property
    def _log(self) -> LogReader:
        if self._log_reader is None:
            self._log_reader = LogReader(self._core)
        return self._log_reader

    def database_differences(self) -> tuple[str, ...]:
        """Return in what the files are newer than the database; nothing if they agree.

        While there is a difference nothing is recorded, signed or destroyed (`OldDatabaseError`).
        """
        return tuple(differences(self._core))

    def adopt_database(self, *, yes: bool = False) -> Adoption:
        """Go on from a database that is older than the files, because the newer one is lost.

        Parameters
        ----------
        yes : bool, default=False
            Do it, and record it in the log. Otherwise only what would be lost is returned.
        """
        return adopt(self._core, yes=yes)
