"""An act of the demo: a model file from a stranger who wants to read a key."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from letheon.demo._scene import Scene
from letheon.exceptions import UntrustedClassError
from letheon.naive import NaiveUnlearner
from letheon.persist import load, save
from letheon.sandbox import Limits, call, protection

__all__ = ["distrust"]


def distrust(scene: Scene) -> None:
    """Load a file whose settings read files; then try to read one in a sandboxed process."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "signing.key"
        key.write_text("secret words")
        path = Path(folder) / "stranger.letheon"
        _save_reader(path, key)
        scene.say("A stranger sends a model whose vectoriser opens every file that a row names:")
        refused = False
        try:
            load(path)
        except UntrustedClassError as error:
            refused = True
            scene.quote(f"UntrustedClassError: {error}", "yellow")
        scene.check(refused, "a setting that reads files is refused")
        _try_sandbox(scene, key)


def _save_reader(path: Path, key: Path) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    reader = make_pipeline(CountVectorizer(input="filename"), MultinomialNB())
    save(NaiveUnlearner(reader, random_state=0).fit([str(key)] * 2, [0, 1]), path)


def _try_sandbox(scene: Scene, key: Path) -> None:
    """Let a sandboxed process read the file itself: the kernel refuses."""
    answer = call(read_text, str(key), limits=Limits(memory=1 << 30, seconds=60))
    scene.say("Had it found another way: models from outside are fitted in a process of their own.")
    scene.say(f"It tried to open the key, and got: {answer}. Active here: {protection()}.")
    if protection().files == "landlock":
        scene.check(answer == "PermissionError", "a sandboxed process reads no file")


def read_text(path: str, _: Callable[[Any], None]) -> str:
    """Return what is in a file, or the kind of the refusal; run in the sandbox."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__
