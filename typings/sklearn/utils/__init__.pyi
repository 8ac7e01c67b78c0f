from typing import Any

class Tags:
    estimator_type: str | None
    target_tags: Any
    transformer_tags: Any
    classifier_tags: Any
    regressor_tags: Any
    array_api_support: bool
    no_validation: bool
    non_deterministic: bool
    requires_fit: bool
    input_tags: Any

def get_tags(estimator: Any) -> Tags: ...
def check_array(array: Any, *args: Any, **options: Any) -> Any: ...
def check_X_y(X: Any, y: Any, *args: Any, **options: Any) -> tuple[Any, Any]: ...
def check_random_state(seed: Any) -> Any: ...
def gen_batches(n: int, batch_size: int, *, min_batch_size: int = ...) -> Any: ...
def shuffle(*arrays: Any, random_state: Any = ..., n_samples: int | None = ...) -> Any: ...
