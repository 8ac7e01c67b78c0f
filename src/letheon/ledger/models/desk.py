"""How models come into a ledger; a part of `Ledger`."""

import threading
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from letheon.ledger.core import Core
from letheon.ledger.models.examine import ModelFiles, examine_files, examine_model
from letheon.ledger.models.info import ModelInfo, model_info
from letheon.ledger.models.register import Registration
from letheon.ledger.models.registration import (
    class_names,
    judged_by,
    register_fitted,
    register_trained,
)
from letheon.ledger.models.training import held_rows
from letheon.ledger.models.versions import head_of, model_of, read_ids
from letheon.ledger.purge.markers import is_distinctive_id
from letheon.ledger.purge.stores import stores, warn_of_gaps
from letheon.ledger.requests.encrypted_ids import person_tags
from letheon.ledger.tables import blocked

__all__ = ["ModelDesk"]


class ModelDesk:
    """Registering models; see `Ledger`."""

    _core: Core

    def register(
        self,
        model: Any,
        X: Any,
        y: Any,
        *,
        ids: Any = None,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        test: tuple[Any, ...] | None = None,
        monitor: Any = None,
        preprocessing: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        row_params: dict[str, Any] | None = None,
        trusted: Any = (),
    ) -> ModelInfo:
        """Register a fitted model with the rows that it was fitted on.

        An exact model is trained once more on the rows and compared, because certificates of a
        model that the rows do not give could never be verified.

        Parameters
        ----------
        model : fitted estimator of letheon
            It is copied into the ledger; this object is not changed and not watched.
        X, y, ids
            As they were given to `fit`.
        name : str
            Name of the model.
        tenant : str, default="default"
            Whose model it is. Requests of other tenants never reach it.
        dataset : str, optional
            Name of the data; default: that of the model.
        test : (X, y) or (X, y, ids), optional
            Rows by which effectiveness is estimated. People who leave leave these too.
        monitor : Monitor, optional
            Watches the model: its decisions and proxies become part of the certificates.
        preprocessing : str, optional
            SHA-256 of what was done to the data before; it is quoted in certificates.
        releases : {"labels-only", "latest-only", "every-version"}, optional
            What of the model leaves the house; default: what its guarantee covers.
        row_params : dict, optional
            Further arguments of `fit` with one value per row, such as ``risk``.
        trusted : iterable of class, function or str, optional
            Classes of yours that the model uses; see `letheon.load`.

        Returns
        -------
        ModelInfo
        """
        rows = held_rows(X, y, ids, row_params)
        judged = judged_by(model, test, monitor)
        registration = Registration(
            name=name,
            tenant=tenant,
            dataset=dataset,
            preprocessing=preprocessing,
            releases=releases,
            trusted=class_names(trusted),
        )
        examined = examine_model(model, rows, registration.trusted)
        return self._info(register_fitted(self._core, examined, rows, registration, judged=judged))

    def register_files(
        self,
        files: ModelFiles,
        *,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        seconds: float = 3600.0,
        stop: threading.Event | None = None,
    ) -> ModelInfo:
        """Register a model that came as files, which may be hostile.

        The files are read, and the model is trained again, in a process that can reach no other
        file, no network, no keys and no database. From then on the model is computed in such a
        process only, one task after the other, unless `files` names classes to be trusted.

        Parameters
        ----------
        files : ModelFiles
            What `letheon.save` wrote, and tables of rows.
        name, tenant, dataset, releases
            See `register`.
        seconds : float, default=3600
            Longest time for reading and training.
        stop : Event, optional
            When it is set the work is ended.

        Raises
        ------
        LetheonError, TableFileError
            What is wrong with the files.
        SandboxError
            They took too long or too much memory, or the process failed otherwise.
        """
        upload = examine_files(files, seconds=seconds, stop=stop)
        registration = Registration(
            name=name,
            tenant=tenant,
            dataset=dataset,
            releases=releases,
            trusted=files.trusted,
            origin="own" if files.trusted else "outside",
        )
        return self._info(
            register_fitted(
                self._core, upload.examined, upload.rows, registration, judged=upload.judged
            )
        )

    def train(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        ids: Any = None,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        test: tuple[Any, ...] | None = None,
        preprocessing: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        row_params: dict[str, Any] | None = None,
        trusted: Any = (),
    ) -> ModelInfo:
        """Train a model with a seed that nobody could choose, and register it.

        A random key is committed to in the log, a checkpoint of the log is signed, and the seed is
        derived from both. So the operator cannot try seeds until a model suits; with a witness
        who co-signs checkpoints that is proved, without one the certificates say that it is not.

        Parameters
        ----------
        estimator : estimator of letheon
            Unfitted; its `random_state` is replaced.
        X, y, ids, name, tenant, dataset, test, preprocessing, releases, row_params, trusted
            See `register`.
        """
        rows = held_rows(X, y, ids, row_params)
        registration = Registration(
            name=name,
            tenant=tenant,
            dataset=dataset,
            preprocessing=preprocessing,
            releases=releases,
            trusted=class_names(trusted),
        )
        return self._info(register_trained(self._core, estimator, rows, registration, test=test))

    def without_blocked(
        self, X: Any, y: Any, ids: Any, *, tenant: str = "default"
    ) -> tuple[Any, Any, NDArray[Any]]:
        """Return X, y and ids without the rows of people who asked this tenant to be erased."""
        rows = held_rows(X, y, ids)
        with self._core.database.reading() as conn:
            asked = set(conn.scalars(select(blocked.c.tag).where(blocked.c.tenant == tenant)))
        tags = person_tags(self._core, tenant, rows.ids)
        kept = rows.take(np.flatnonzero([tag not in asked for tag in tags]))
        return (*kept.part(0, len(kept)), kept.ids.to_array())

    def _info(self, model_id: int) -> ModelInfo:
        with self._core.database.reading() as conn:
            row = model_of(conn, model_id)
            head, info = head_of(conn, model_id), model_info(conn, row)
        if registered := stores(self._core):
            ids = read_ids(self._core, row, head).to_list()
            if not all(map(is_distinctive_id, ids)):
                warn_of_gaps(registered, has_short_ids=True)
        return info
