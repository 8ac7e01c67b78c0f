"""A photo app; users have many images each and may request erasure.

The images are synthetic: shapes of 16 x 16 grey values, with a style per user. Convolutional
networks classify them, one network per shard, with checkpoints in files. Users close their accounts
on two days, and the model is saved and loaded in between. At the end it is compared with a model
that was trained without these users. Needs torch: ``pip install 'letheon[torch]'``. Run: ``python
examples/photo_app.py``.
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
    """Return an image of a shape at a random position."""
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
    """Return images, their shapes, and the user of each image."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(N_USERS), rng.integers(3, 12, N_USERS))
    hands = rng.uniform(60, 150, N_USERS)
    shapes = rng.choice(SHAPES, len(owners))
    pictures = [
        draw(str(shape), hands[owner], rng) for shape, owner in zip(shapes, owners, strict=True)
    ]
    return np.stack(pictures), shapes, np.array([f"user-{owner:03d}" for owner in owners])


def new_model(folder: Path, seed: int = 0) -> SISANetClassifier:
    """Return the unfitted model; its networks divide grey values by 255, a constant."""
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
    """Print the loss after the last epoch of each part of the training."""
    if progress.epoch + 1 == progress.n_epochs:
        print(f"  part {progress.part + 1} of {progress.n_parts}: loss {progress.loss:.3f}")


def serve(model: SISANetClassifier, users: tuple[str, ...], log: list[Receipt]) -> None:
    """Forget users and log the receipt, which contains no ids."""
    receipt = model.forget(list(users))
    log.append(receipt)
    print(receipt)


def main() -> None:
    """Train, apply two days of requests with a save in between, compare with a fresh fit."""
    pictures, shapes, owners = make_pictures()
    gone = [user for day in DAYS for user in day]
    stay = ~np.isin(owners, gone)
    log: list[Receipt] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = new_model(folder / "states").fit(pictures, shapes, ids=owners, callback=show)
        print(f"{model.n_rows_} images of {len(model.ids_)} users")

        serve(model, DAYS[0], log)
        # The file and the checkpoint folder contain personal data.
        letheon.save(model, folder / "night.letheon")
        # The file contains the path of the checkpoint folder, so the class must be trusted.
        model = letheon.load(folder / "night.letheon", trusted=[SISANetClassifier])
        serve(model, DAYS[1], log)

        others = make_pictures(seed=1)
        print(f"accuracy on images of other users: {model.score(others[0], others[1]):.1%}")
        fresh = new_model(folder / "fresh", model.seed_)
        fresh.fit(pictures[stay], shapes[stay], ids=owners[stay])
        print("equal to a fresh fit:", fresh.digest() == model.digest())
    text = json.dumps([receipt.to_dict() for receipt in log])
    print("receipts contain no ids:", not any(user in text for user in gone))


if __name__ == "__main__":
    main()
