"""Users of a photo app, each with many pictures, who may ask to be forgotten.

The pictures are synthetic: 16 x 16 grey values of a few shapes, with a style per user. A
convolutional network classifies them, one network per shard, with states in files. Users close
their accounts, the model is saved and loaded between two days, and at the end it is compared with
a model that was trained without them. Needs torch: ``pip install 'letheon[torch]'``. Run:
``python examples/photo_app.py``.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import letheon
from letheon import Receipt, SISANetClassifier
from letheon.deep import CNN, Progress

N_USERS, SIZE = 240, 16
SHAPES = ("bar", "cross", "frame", "spot")
DAYS = (("user-017",), ("user-003", "user-101", "user-200"))

Images = NDArray[np.uint8]


def draw(shape: str, brightness: float, rng: np.random.Generator) -> Images:
    """Return a picture of a shape at a random place."""
    picture = rng.normal(60, 20, (SIZE, SIZE))
    top, left = rng.integers(0, SIZE - 8, 2)
    part = picture[top : top + 8, left : left + 8]
    if shape in ("bar", "cross"):
        part[3:5] += brightness
    if shape == "cross":
        part[:, 3:5] += brightness
    if shape == "frame":
        part[[0, 1, 6, 7]] += brightness
        part[:, [0, 1, 6, 7]] += brightness
    if shape == "spot":
        part[2:6, 2:6] += brightness
    return picture.clip(0, 255).astype(np.uint8)


def make_pictures(seed: int = 0) -> tuple[Images, NDArray[np.str_], NDArray[np.str_]]:
    """Return pictures, what is on them, and whose each is."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(N_USERS), rng.integers(3, 12, N_USERS))
    hands = rng.uniform(60, 150, N_USERS)
    shapes = rng.choice(SHAPES, len(owners))
    pictures = [
        draw(str(shape), hands[owner], rng) for shape, owner in zip(shapes, owners, strict=True)
    ]
    return np.stack(pictures), shapes, np.array([f"user-{owner:03d}" for owner in owners])


def new_model(folder: Path, seed: int = 0) -> SISANetClassifier:
    """Return the unfitted model. The net divides grey values by 255: a constant, not learned."""
    return SISANetClassifier(
        module=CNN(channels=(8, 16), hidden=32),
        n_shards=4,
        n_slices=3,
        epochs=12,
        checkpoint_dir=folder,
        device="cpu",
        random_state=seed,
    )


def show(progress: Progress) -> None:
    """Say something after the last epoch of each part of the training."""
    if progress.epoch + 1 == progress.n_epochs:
        print(f"  part {progress.part + 1} of {progress.n_parts}: loss {progress.loss:.3f}")


def serve(model: SISANetClassifier, users: tuple[str, ...], log: list[Receipt]) -> None:
    """Forget users and file the receipt, which never says who they were."""
    receipt = model.forget(list(users))
    log.append(receipt)
    print(receipt)


def main() -> None:
    """Train, serve two days of requests with a save in between, compare with a fresh fit."""
    pictures, shapes, owners = make_pictures()
    gone = [user for day in DAYS for user in day]
    stay = ~np.isin(owners, gone)
    log: list[Receipt] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = new_model(folder / "states").fit(pictures, shapes, ids=owners, callback=show)
        print(f"{model.n_rows_} pictures of {len(model.ids_)} users")

        serve(model, DAYS[0], log)
        # Pictures and states are personal data: so are the file and the folder of states.
        letheon.save(model, folder / "night.letheon")
        # The file names the folder of states, so its class must be trusted.
        model = letheon.load(folder / "night.letheon", trusted=[SISANetClassifier])
        serve(model, DAYS[1], log)

        others = make_pictures(seed=1)
        print(f"{model.score(others[0], others[1]):.1%} right on pictures of other users")
        fresh = new_model(folder / "fresh", model.seed_)
        fresh.fit(pictures[stay], shapes[stay], ids=owners[stay])
        print("equal to a fresh fit:", fresh.digest() == model.digest())
    text = json.dumps([receipt.to_dict() for receipt in log])
    print("receipts contain no ids:", not any(user in text for user in gone))


if __name__ == "__main__":
    main()
