"""What the checks need of files: the bytes of a saved model, and a loaded copy."""

import pickle
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from letheon.persist import load, save


def _trusted(model: Any) -> list[type]:
    """Classes that are not on the allow-list: a user's own estimator, say."""
    from letheon.state import classes_of

    return list(classes_of(model))


def saved_bytes(model: Any) -> bytes:
    """Return the bytes that `letheon.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        return path.read_bytes()


def loaded_copy(model: Any) -> Any:
    """Return the model after a round trip through a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(model, path)
        return load(path, trusted=_trusted(model))


def all_bytes(model: Any) -> Iterable[tuple[str, bytes]]:
    """Return every form in which the model could leave the process."""
    yield "the saved file", saved_bytes(model)
    yield "the pickled object", pickle.dumps(model)
