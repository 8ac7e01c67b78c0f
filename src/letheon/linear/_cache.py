"""A place for what can be computed again: never saved, digested, pickled or copied."""

from typing import Any, Generic, Self, TypeVar

Content = TypeVar("Content")


class Cache(Generic[Content]):
    """Holds one thing, or nothing. To every file, digest and pickle it is empty."""

    def __init__(self, content: Content | None = None) -> None:
        self.content = content

    def _to_state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:  # noqa: ARG003
        return cls()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the content behind."""
        return type(self), ()

    def __copy__(self) -> Self:
        """Return an empty one: contents change in place."""
        return type(self)()

    def __deepcopy__(self, _: Any) -> Self:
        """Return an empty one."""
        return type(self)()
