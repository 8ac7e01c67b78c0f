"""Nets that keep the parameters after every block or stage, to go on from them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from letheon.base import Outcome, Removal
from letheon.deep._base import NetBase
from letheon.deep._loop import Callback
from letheon.deep._vault import Vault, VaultChange
from letheon.exceptions import CheckpointWarning
from letheon.homes import HomeMixin, destroy_home
from letheon.removal import Change, Opaque
from letheon.validation import OrNone, Rules, Whole


@dataclass(frozen=True, eq=False, repr=False)
class Prepared(Opaque):
    """A change of the model and one of its vault; without the second the vault is a new one."""

    change: Change
    aside: VaultChange | None


class CheckpointedNet(HomeMixin, NetBase):
    """A net with a vault: in memory, in a nameless file above `max_memory` bytes, or in files."""

    _parameter_rules: ClassVar[Rules] = {"max_memory": OrNone(Whole(0))}

    checkpoint_dir: Any
    max_memory: int | None

    vault_: Vault

    _not_digested: ClassVar[frozenset[str]] = NetBase._not_digested | HomeMixin.home_attributes

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        self._require_home_in_place()

    def _new_vault(self, n: int, p: int) -> tuple[Vault, dict[str, Any]]:
        """Return an empty vault of a new fit, and the attributes that go with it."""
        home = self._new_home()
        vault = Vault.create(n, p, device=self._device(), home=home, max_memory=self.max_memory)
        return vault, {"vault_": vault, **self._place(home)}

    def _vault(self) -> Vault:
        """Return the vault where it lies now: the model may have been loaded or moved."""
        vault = self.vault_.settle(self._home())
        return vault.to(self._device(), max_memory=self.max_memory)

    def _prepare(self, removal: Removal, callback: Callback | None = None) -> Prepared:
        lost = self._lost()
        if lost is not None:
            return Prepared(self._started_over(removal, callback, lost), None)
        self._vault()
        found: Any = super()._prepare(removal, callback)
        return found if isinstance(found, Prepared) else Prepared(found, None)

    def _lost(self) -> str | None:
        """Say why no state can be read or replaced any more, if so: all is trained again then."""
        if self.checkpoint_home_ is not None and self.checkpoint_dir is None:
            self._vault()
            return f"the states in {self.checkpoint_home_} are gone, and checkpoint_dir is None now"
        if self.vault_.is_foreign:
            return "the states belong to the process that this one was forked from"
        return None

    def _started_over(self, removal: Removal, callback: Callback | None, why: str) -> Change:
        """Prepare a fit from scratch, because no state is left."""
        self._counts_without(removal.where)
        with self._training():
            return with_reason(self._retrain(removal.where, callback), why)

    def _commit(self, plan: Any) -> Outcome:
        old = self.vault_
        # A model whose states lie in memory has no directory, whatever `checkpoint_dir` says now;
        # where one was taken away, messages name it once more.
        if self.checkpoint_home_ is not None and self.checkpoint_dir is not None:
            vars(self).update(self._place(self._home()))
        purge = old.destroy() if plan.aside is None else old.commit(plan.aside)
        # Before the change, which may bring a new directory: messages name that of the old states.
        messages = self._account(purge, afresh=False)
        outcome: Outcome = plan.change.commit(self)
        return outcome._replace(warnings=(*outcome.warnings, *_warnings(messages)))

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        old_homes = self._old_homes()
        found = super()._replace_all(change, about)
        self.undestroyed_, self.unaccounted_ = (), ()
        messages = [message for home in old_homes for message in destroy_home(home)]
        return (*found, *_warnings(messages))

    def _changed_in_place(self) -> tuple[str, ...]:
        return (*super()._changed_in_place(), "vault_")


def with_reason(change: Change, why: str) -> Change:
    """Return a change that warns why everything was trained again."""
    lost = CheckpointWarning(f"{why}; everything was trained again")
    outcome = change.outcome._replace(warnings=(*change.outcome.warnings, lost))
    return Change(change.attributes, outcome, change.writes)


def _warnings(messages: list[str]) -> tuple[Warning, ...]:
    return tuple(CheckpointWarning(text) for text in messages)
