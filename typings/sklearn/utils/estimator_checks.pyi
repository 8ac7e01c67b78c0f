from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

def check_estimator(estimator: Any, **options: Any) -> list[dict[str, Any]]: ...
def estimator_checks_generator(estimator: Any, **options: Any) -> Any: ...
def parametrize_with_checks(
    estimators: Sequence[Any], **options: Any
) -> Callable[[_F], _F]: ...
