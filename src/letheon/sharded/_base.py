"""What the SISA classifier and regressor share: holding rows, training shards, forgetting."""

import re
import secrets
import warnings
from abc import abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from letheon import state
from letheon.base import ForgetMixin, Outcome, Removal, exclusive, require_known
from letheon.exceptions import (
    ChangedParametersError,
    CheckpointWarning,
    CorruptFileError,
    IdsTypeError,
    ShardingWarning,
)
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner import inherit_tags, remember_features, retraining
from letheon.rows import Ids, Rows, hold_table, row_ids, table_length
from letheon.seeds import Purpose, seed_from
from letheon.sharded._assign import Assignment, Integers, check_risk_edges, risk_tiers
from letheon.sharded._plan import StageData
from letheon.sharded._settings import check_choice, check_count, check_kind, stage_epochs
from letheon.sharded._shards import Change, Ensemble, Replacement, change_rows
from letheon.sharded._stages import Recipe
from letheon.sharded._states import StateShelf
from letheon.sharded._trainer import Trainer

_FACTS = MethodFacts(
    method="sisa",
    applicability="any estimator (shards); any estimator with partial_fit (slices)",
    exact=True,
    strength="weak",
    efficiency_parameters=("n_shards", "n_slices"),
    certifiability_parameters=(),
    requests="oblivious",
    releases="latest-only",
    state_holds_rows=True,
    definition_name="sisa",
)


_KEY = re.compile("[0-9a-f]{32}")


class SISABase(ForgetMixin, MetaEstimatorMixin, BaseEstimator):
    """Sharded, isolated, sliced training of any scikit-learn estimator."""

    facts: ClassVar[MethodFacts] = _FACTS
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | {
        "checkpoint_key_",
        "checkpoint_home_",
        "undestroyed_",
    }
    _is_classifier: ClassVar[bool]
    _aggregations: ClassVar[tuple[str, ...]]

    estimator: Any
    n_shards: int
    n_slices: int
    epochs: int | None
    stage_data: StageData
    aggregation: str
    risk_edges: Any
    checkpoint_dir: Any
    n_jobs: int | None
    random_state: Any
    ensemble_: Ensemble
    seed_: int
    checkpoint_key_: str
    checkpoint_home_: str | None
    undestroyed_: tuple[str, ...]
    environment_: dict[str, str]

    def fit(self, X: Any, y: Any, *, ids: Any = None, risk: Any = None) -> Self:
        """Train every shard; keep the rows and the state after each slice.

        Parameters
        ----------
        X : array-like, sparse, pandas or polars frame, or a list of texts
            Training rows.
        y : array-like
            Labels or targets.
        ids : sequence of int or of str, optional
            Whose row each is; may repeat. Default ``0..n-1``. All rows of a person are in one
            shard and one slice.
        risk : one number per row, or mapping from id to number, optional
            How likely a person is to ask for erasure; needs `risk_edges`. The same for all rows
            of a person, and not derived from other people's data.

        Returns
        -------
        self
        """
        with exclusive(self):
            seed = seed_from(self.random_state)
            edges = self._check_settings()
            rows = self._hold(X, y, ids)
            rows.extra["tier"] = risk_tiers(risk, rows.ids, edges)
            self._warn_if_crowded(rows.ids)
            assignment = Assignment(seed, self.n_shards, self.n_slices, len(edges) + 1)
            key = secrets.token_hex(16)
            trainer = self._trainer(assignment, key)
            blocks = enumerate(_split(rows, assignment))
            changes = [Change(None, number, block, 0) for number, block in blocks]
            ensemble = trainer.replace((), changes).ensemble
            remember_features(self, X)
            self._destroy_previous()
            self._install(ensemble, key)
        return self

    def learn(self, X: Any, y: Any, *, ids: Any, risk: Any = None) -> Self:
        """Add rows, as if they had been there from the start, after the rows already held.

        Rows of a known id join that person's shard and slice; `risk` is needed for new people when
        the model has `risk_edges`.
        """
        check_is_fitted(self)
        if ids is None:
            raise IdsTypeError("learn got ids=None; say whose rows they are, one id per row")
        with exclusive(self):
            self._require_same_parameters()
            rows = self._hold(X, y, ids)
            rows.extra["tier"] = self._tiers(rows.ids, risk)
            replacement = self._replace(self._additions(rows))
            self._install(replacement.ensemble, self.checkpoint_key_)
        return self

    @property
    def estimators_(self) -> list[Any]:
        """Fitted models of the shards that hold rows."""
        check_is_fitted(self)
        return self.ensemble_.models

    @property
    def n_rows_(self) -> int:
        """Number of rows still held."""
        return sum(len(shard.rows) for shard in self.ensemble_.shards)

    def _held_ids(self) -> Ids:
        first, *others = (shard.rows.ids for shard in self.ensemble_.shards)
        return first.joined(*others)

    def _claim(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="Bourtoule et al. 2021, section V; oblivious by Gupta et al. 2021",
            requests=self.facts.requests,
            releases=self.facts.releases,
            assumptions=("seed-independent-of-requests", "same-libraries-and-cpu-kernel"),
            residual_state=tuple(
                f"checkpoint file {name} could not be destroyed"
                for name in vars(self).get("undestroyed_", ())
            ),
        )

    def _locate(self, wanted: Ids) -> Removal:
        where, tiers = self.ensemble_.find(wanted)
        require_known(wanted.take(np.flatnonzero(tiers < 0)))
        return Removal(len(wanted), sum(len(rows) for rows in where.values()), where)

    def _prepare(self, removal: Removal) -> Replacement:
        recipe, changes = self._recipe(self.seed_), []
        for number, positions in removal.where.items():
            shard = self.ensemble_.shards[number]
            touched = shard.rows.extra["slice"][positions]
            changes.append(change_rows(shard, shard.rows.without(positions), touched, recipe))
        with retraining():
            return self._replace(changes)

    def _commit(self, plan: Replacement) -> Outcome:
        self._install(plan.ensemble, self.checkpoint_key_)
        return Outcome(plan.work, plan.rebuilt)

    @abstractmethod
    def _hold_labels(self, y: Any) -> NDArray[Any]:
        """Return y in canonical form, or raise for labels of the wrong kind."""

    def _hold(self, X: Any, y: Any, ids: Any) -> Rows:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        held, target = hold_table(X), self._hold_labels(y)
        check_consistent_length(held, target)
        return Rows(held, target, row_ids(ids, table_length(held)))

    def _check_settings(self) -> NDArray[np.float64]:
        check_count("n_shards", self.n_shards)
        check_count("n_slices", self.n_slices)
        check_choice("aggregation", self.aggregation, self._aggregations)
        check_kind(self.estimator, classifier=self._is_classifier)
        stage_epochs(self.estimator, self.n_slices, self.epochs, self.stage_data)
        state.ensure_supported(self.estimator)
        return check_risk_edges(self.risk_edges)

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        home = vars(self).get("checkpoint_home_")
        if home is not None and home != self._home(self.checkpoint_key_) and Path(home).exists():
            raise ChangedParametersError(
                f"checkpoint_dir was changed after fit, but states still lie in {home}; they may "
                "hold people to be forgotten. Move that directory too, or set checkpoint_dir back."
            )

    def _warn_if_crowded(self, ids: Ids) -> None:
        people = len(np.unique(ids.hashes(0, Purpose.ID_INDEX)))
        if people < self.n_shards:
            warnings.warn(
                f"n_shards={self.n_shards} is more than the {people} people there are; "
                "some shards stay empty",
                ShardingWarning,
                stacklevel=3,
            )

    def _tiers(self, ids: Ids, risk: Any) -> Integers:
        """Return the tiers of new rows: the held one for known people, else from `risk`."""
        edges = check_risk_edges(self.risk_edges)
        _, held = self.ensemble_.find(ids)
        if len(edges) and risk is None and (held >= 0).all():
            return held
        tiers = risk_tiers(risk, ids, edges)
        if ((held >= 0) & (held != tiers)).any():
            raise ValueError(
                "risk puts a person who is already held into another tier, which would move their "
                "rows; forget and learn them again, or give the risk they had"
            )
        return tiers

    def _additions(self, rows: Rows) -> list[Change]:
        changes, recipe = [], self._recipe(self.seed_)
        blocks = _split(rows, self.ensemble_.assignment)
        for shard, block in zip(self.ensemble_.shards, blocks, strict=True):
            if len(block):
                joined = _order_by_slice(shard.rows.joined(block))
                changes.append(change_rows(shard, joined, block.extra["slice"], recipe))
        return changes

    def _recipe(self, seed: int) -> Recipe:
        return Recipe(
            template=self.estimator,
            seed=seed,
            n_slices=self.n_slices,
            epochs=stage_epochs(self.estimator, self.n_slices, self.epochs, self.stage_data),
            stage_data=self.stage_data,
            is_classifier=self._is_classifier,
        )

    def _trainer(self, assignment: Assignment, key: str) -> Trainer:
        shelf = StateShelf(self._home(key))
        return Trainer(self._recipe(assignment.seed), assignment, shelf, self.n_jobs)

    def _replace(self, changes: list[Change]) -> Replacement:
        """Train the changed shards; all of them if the libraries are not those of the fit.

        States of another version are never continued: the result would equal no fresh fit.
        """
        shards = self.ensemble_.shards
        if vars(self).get("environment_") != state.environment():
            rows = {change.number: change.rows for change in changes}
            changes = [
                Change(shard, shard.number, rows.get(shard.number, shard.rows), 0)
                for shard in shards
            ]
        trainer = self._trainer(self.ensemble_.assignment, self.checkpoint_key_)
        return trainer.replace(shards, changes)

    def _home(self, key: str) -> str | None:
        """Directory of this model's states, if they are kept on disk."""
        if self.checkpoint_dir is None:
            return None
        if not _KEY.fullmatch(key):  # a file may say anything; the key becomes part of a path
            raise CorruptFileError(f"checkpoint_key_ must be 32 hexadecimal digits, not {key!r}")
        return str(Path(self.checkpoint_dir).absolute() / key)

    def _install(self, ensemble: Ensemble, key: str) -> None:
        """Swap the ensemble in, then destroy every state it does not refer to."""
        home = self._home(key)
        # One call, so that a concurrent predict never sees half of it.
        vars(self).update(
            ensemble_=ensemble,
            seed_=ensemble.assignment.seed,
            checkpoint_key_=key,
            checkpoint_home_=home,
            **self._remember_settings(),
        )
        self.undestroyed_ = _destroy(StateShelf(home), ensemble.files)

    def _destroy_previous(self) -> None:
        """Destroy the states of an earlier fit of this instance."""
        home = vars(self).get("checkpoint_home_")
        if home is not None:
            _destroy(StateShelf(home), frozenset())

    def __sklearn_tags__(self) -> Tags:
        """Tags of the inner estimator, single output for classifiers."""
        kind = super().__sklearn_tags__().estimator_type
        tags = inherit_tags(super().__sklearn_tags__(), self.estimator)
        tags.estimator_type = kind
        return tags


def _destroy(shelf: StateShelf, keep: frozenset[str]) -> tuple[str, ...]:
    resisting = shelf.destroy_all_but(keep)
    if resisting:
        warnings.warn(
            f"{len(resisting)} checkpoint file(s) could not be destroyed, among them "
            f"{resisting[0]}; remove them: they saw rows that the model has forgotten",
            CheckpointWarning,
            stacklevel=3,
        )
    return resisting


def _split(rows: Rows, assignment: Assignment) -> list[Rows]:
    """Return the rows of every shard, ordered by slice, held order kept inside a slice."""
    tiers = rows.extra["tier"]
    shards = assignment.shards(rows.ids, tiers)
    rows.extra["slice"] = assignment.slices(rows.ids, tiers)
    order = np.lexsort((rows.extra["slice"], shards))
    bounds = np.searchsorted(shards[order], np.arange(assignment.n_shards + 1))
    return [rows.take(order[a:b]) for a, b in pairwise(bounds.tolist())]


def _order_by_slice(rows: Rows) -> Rows:
    return rows.take(np.argsort(rows.extra["slice"], kind="stable"))
