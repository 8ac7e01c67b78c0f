"""What a request will change, decided before anything is changed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from letheon.base import Outcome
from letheon.linear._quiet import Quiet


@dataclass(frozen=True, repr=False)
class Change(Quiet):
    """Attributes to replace at once, and writes into memory that already exists.

    Readers look at attributes only, so they see the model before or after.
    """

    attributes: dict[str, Any]
    outcome: Outcome
    writes: tuple[Callable[[], None], ...] = field(default=())

    def commit(self, model: Any) -> Outcome:
        """Make the change. Cannot fail."""
        vars(model).update(self.attributes)
        for write in self.writes:
            write()
        return self.outcome
