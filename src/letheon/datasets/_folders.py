"""ImageNet, Mini-ImageNet, LSUN and Lacuna: folders of picture files, one per class or person."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._files import check_rows
from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._pictures import ENDINGS, decode, refuse_too_large
from letheon.datasets._synthetic import StandIn
from letheon.exceptions import DatasetFormatError

__all__ = ["SCENES", "SOURCES"]

SCENES = (
    "bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room",
    "kitchen", "living_room", "restaurant", "tower",
)  # fmt: skip
_FEWEST_FACES = 500
_TEST_FACES = 100
_LACUNA_10, _LACUNA_100 = 10, 100


class Files(NamedTuple):
    """Paths of pictures and the class of each."""

    paths: list[Path]
    classes: NDArray[np.int64]

    def chosen(self, n_rows: int | None, seed: int) -> "Files":
        """Return so many at random, in their order; all where there are no more."""
        if n_rows is None or n_rows >= len(self.paths):
            return self
        kept = np.zeros(len(self.paths), np.bool_)
        kept[np.random.default_rng(seed).permutation(len(kept))[:n_rows]] = True
        return self.at(kept)

    def at(self, kept: NDArray[np.bool_]) -> "Files":
        """Return the marked ones."""
        paths = [path for path, is_kept in zip(self.paths, kept, strict=True) if is_kept]
        return Files(paths, self.classes[kept])


def _in_folders(folders: list[Path]) -> Files:
    """Return the pictures below folders; the class is the folder's place in the list."""
    found = [_pictures(folder) for folder in folders]
    empty = [folder for folder, paths in zip(folders, found, strict=True) if not paths]
    if empty:
        raise DatasetFormatError(
            f"no pictures ({', '.join(sorted(ENDINGS))}) in {empty[0]}"
            + (f", nor in {len(empty) - 1:,} other folders" if len(empty) > 1 else "")
        )
    n_found = np.array([len(paths) for paths in found], np.int64)
    classes = np.repeat(np.arange(len(folders)), n_found)
    return Files([path for paths in found for path in paths], classes)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _load(
    job: Job, train: Files, test: Files | None, *, side: int, shorter: int | None = None
) -> Loaded:
    """Choose files first and decode those only: all of them rarely fit into memory."""
    train = train.chosen(job.n_rows, job.seed)
    test = None if test is None else test.chosen(job.n_rows, job.seed)
    if not train.paths:
        raise DatasetFormatError(f"no pictures ({', '.join(sorted(ENDINGS))}) to train on")
    n_all = len(train.paths) + (0 if test is None else len(test.paths))
    refuse_too_large(job.info.name, n_all, 3 * side * side)
    X = decode(train.paths, side=side, shorter=shorter)
    if test is None:
        return Loaded(X, train.classes)
    X_test = decode(test.paths, side=side, shorter=shorter)
    return Loaded(X, train.classes, X_test=X_test, y_test=test.classes)


def read_imagenet(job: Job) -> Loaded:
    """Read ``train/<wnid>/*.JPEG`` and, where it is there, ``val/<wnid>/*.JPEG``.

    Shorter side 256, middle 224 x 224, pixels from 0 to 1; y is the place of the WordNet id
    among those of the training folder. Validation pictures must stand in folders by class, some
    for every class of the training folder; other classes are left out.
    """
    folders = _folders(job.where(0)[1])
    train = _in_folders(folders)
    if job.check:
        check_rows(job.where(0)[1], job.info.files[0].rows.get("train/"), len(train.paths))
    val = job.maybe(1)
    test = None
    if val is not None:
        _refuse_unsorted(val[1])
        test = _in_folders([val[1] / folder.name for folder in folders])
    return _load(job, train, test, side=224, shorter=256)


def _refuse_unsorted(folder: Path) -> None:
    n_unsorted = sum(path.suffix.lower() in ENDINGS for path in folder.iterdir())
    if n_unsorted:
        raise DatasetFormatError(
            f"{n_unsorted:,} pictures stand in {folder} itself, so that their class is not known: "
            "sort them into folders by class, as in train, or move them away"
        )


def read_lsun(job: Job) -> Loaded:
    """Read exported pictures, ``<scene>_train/`` and ``<scene>_val/``; 256 x 256, ten scenes.

    The provider's archives are databases (LMDB); its script exports them as picture files. With
    pictures to test on of one scene, there must be some of all.
    """
    home = job.where(0)[1].parent
    train = _in_folders([home / f"{scene}_train" for scene in SCENES])
    to_test = [home / f"{scene}_val" for scene in SCENES]
    test = _in_folders(to_test) if any(folder.is_dir() for folder in to_test) else None
    return _load(job, train, test, side=256, shorter=256)


def read_lacuna(job: Job) -> Loaded:
    """Read faces of VGGFace2 shrunk to 32 x 32: the class is the person, and so is the id.

    Golatkar et al. drew 10 and 100 people with 500 pictures or more, without overlap, and did not
    publish their names; here people are drawn with a fixed seed. 100 pictures of each are to test.
    """
    people = [folder for folder in _folders(job.where(0)[1]) if _is_famous(folder)]
    order = np.random.default_rng(0).permutation(len(people))
    ten, hundred = order[:_LACUNA_10], order[_LACUNA_10 : _LACUNA_10 + _LACUNA_100]
    drawn, wanted = (ten, _LACUNA_10) if job.info.name == "lacuna-10" else (hundred, _LACUNA_100)
    if len(drawn) < wanted and job.check:
        raise DatasetFormatError(
            f"{len(people)} people have {_FEWEST_FACES} pictures; {job.info.name} needs "
            f"{wanted} of them beside those of the other Lacuna"
        )
    files = _in_folders([people[place] for place in sorted(drawn)])
    rank = np.arange(len(files.paths)) - np.searchsorted(files.classes, files.classes)
    is_test = rank < _TEST_FACES
    found = _load(job, files.at(~is_test), files.at(is_test), side=32)
    return found._replace(ids=found.y, test_ids=found.y_test)


def _is_famous(folder: Path) -> bool:
    return len(_pictures(folder)) >= _FEWEST_FACES


def _faces(name: str, survey: SurveyRow) -> DatasetInfo:
    return DatasetInfo(
        name=name,
        title=f"{name.capitalize()} (faces of VGGFace2)",
        folder="vggface2",
        files=(DataFile(names=("train/",)),),
        provider="VGG, University of Oxford",
        page="https://www.robots.ox.ac.uk/~vgg/data/vgg_face2/",
        licence="withdrawn by the provider; research only, may not be passed on",
        citation="Golatkar, Achille, Soatto (2020), CVPR; Cao et al. (2018), FG",
        subject_id="folder of the person (the class is the person)",
        survey=survey,
        note=(
            "The survey's dimensionality counts pixels; with three colours it is 3,072. Whom "
            "Golatkar et al. drew is not known; people here are drawn with a fixed seed."
        ),
        image_shape=(3, 32, 32),
    )


def _face_stand_in(n_people: int) -> dict[str, StandIn]:
    shares = (1 / n_people,) * n_people
    stand_in = StandIn(
        n_rows=400 * n_people,
        n_test=100 * n_people,
        image_shape=(3, 32, 32),
        shares=shares,
        class_is_person=True,
    )
    return {"": stand_in}


def _imagenet(
    name: str, title: str, n_rows: int, n_classes: int, note: str, citation: str
) -> Source:
    info = DatasetInfo(
        name=name,
        title=title,
        folder=name,
        files=(
            DataFile(names=("train/",), rows={"train/": n_rows}),
            DataFile(names=("val/",), optional=True),
        ),
        provider="ImageNet (an account is needed)",
        page="https://www.image-net.org/download.php",
        licence="non-commercial research only; may not be passed on",
        citation=citation,
        survey=SurveyRow(dimensionality="150,528", size=f"{n_rows:,}", classes=str(n_classes)),
        note=f"{note} Give n_rows: pictures are chosen before they are decoded.",
        image_shape=(3, 224, 224),
    )
    shares = (1 / n_classes,) * n_classes
    stand_in = StandIn(
        n_rows=n_rows, n_test=50 * n_classes, image_shape=(3, 224, 224), shares=shares
    )
    return Source(info=info, read=read_imagenet, stand_ins={"": stand_in})


SOURCES = (
    Source(
        info=DatasetInfo(
            name="lsun",
            title="LSUN, ten scenes",
            folder="lsun",
            files=(
                *(DataFile(names=(f"{scene}_train/",)) for scene in SCENES),
                *(DataFile(names=(f"{scene}_val/",), optional=True) for scene in SCENES),
            ),
            provider="F. Yu, Princeton University",
            page="https://www.yf.io/p/lsun",
            licence="research only",
            citation="Yu et al. (2015), arXiv:1506.03365",
            survey=SurveyRow(dimensionality="65,536", size="1,000,000", classes="10"),
            note=(
                "The survey's dimensionality counts pixels; with three colours it is 196,608. Guo "
                "et al. used features of a pretrained net. The provider's archives are LMDB; "
                "export them with its script. Give n_rows: pictures are chosen before decoding."
            ),
            image_shape=(3, 256, 256),
        ),
        read=read_lsun,
        stand_ins={
            "": StandIn(
                n_rows=1_000_000, n_test=3_000, image_shape=(3, 256, 256), shares=(0.1,) * 10
            )
        },
    ),
    _imagenet(
        "imagenet",
        "ImageNet, ILSVRC 2012",
        1_281_167,
        1_000,
        "Validation pictures must be sorted into folders by class.",
        "Russakovsky et al. (2015), IJCV 115",
    ),
    _imagenet(
        "mini-imagenet",
        "Mini-ImageNet, all pictures of 100 classes",
        128_545,
        100,
        "Folders of the 100 classes; Vinyals et al. took 600 pictures of each, Bourtoule et al. "
        "all of them.",
        "Vinyals et al. (2016), NeurIPS",
    ),
    Source(
        info=_faces("lacuna-10", SurveyRow(dimensionality="1,024", size="≥ 5,000", classes="10")),
        read=read_lacuna,
        stand_ins=_face_stand_in(_LACUNA_10),
    ),
    Source(
        info=_faces(
            "lacuna-100", SurveyRow(dimensionality="1,024", size="≥ 50,000", classes="100")
        ),
        read=read_lacuna,
        stand_ins=_face_stand_in(_LACUNA_100),
    ),
)
