"""The specification of every data set, in the order of the survey's table."""

from dataclasses import replace
from functools import partial

from letheon.datasets._formats import (
    FIRST,
    TOP,
    read_ctr,
    read_purchase,
    read_sst,
    read_svm,
    read_twitter,
)
from letheon.datasets._pictures import (
    CIFAR_JPEG,
    SCENES,
    read_cifar10,
    read_cifar100,
    read_imagenet,
    read_lacuna,
    read_lsun,
    read_mnist,
    read_svhn,
)
from letheon.datasets._spec import (
    COUNTED,
    LISTED,
    UNVERIFIED,
    DataFile,
    DatasetInfo,
    StandIn,
    SurveyRow,
    make_file,
)
from letheon.datasets._table_specs import CC_BY, KAGGLE, TABLE_SPECS, UCI
from letheon.datasets._tables import read_covtype, read_credit_card, read_higgs

__all__ = ["SPECS"]

_LIBSVM = "LIBSVM Data (Chang, Lin)"
_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_COUNTED_SAMPLE = f"sample: {COUNTED}; full file: {UNVERIFIED}"
_COVTYPE_SHARES = (0.3646, 0.4876, 0.0615, 0.0047, 0.0163, 0.0299, 0.0354)
_SVHN_SHARES = (0.068, 0.189, 0.144, 0.116, 0.102, 0.094, 0.078, 0.076, 0.069, 0.064)
# In the order of the survey's table.
_ORDER = (
    "mnist", "covtype", "higgs", "epsilon", "cifar-2", "cifar-10", "cifar-100", "lsun", "sst",
    "svhn", "rcv1", "purchase", "imagenet", "mini-imagenet", "surgical", "vaccine", "adult",
    "bank", "diabetes", "no-show", "olympics", "census", "credit-card", "ctr", "twitter",
    "lacuna-10", "lacuna-100",
)  # fmt: skip


def _mnist_file(name: str, sha256: str) -> DataFile:
    return make_file(f"{name}-ubyte", f"{name.replace('-idx', '.idx')}-ubyte", sha256=sha256)


def _even(n_classes: int) -> tuple[float, ...]:
    return (1 / n_classes,) * n_classes


_COUNTS_BOTH = "The survey's size counts training and test rows."
_NO_PICKLE = (
    "Take the binary version; the python version is made of pickles, which letheon does not open."
)
_CIFAR_10 = DatasetInfo(
    name="cifar-10",
    title="CIFAR-10",
    folder="cifar10",
    files=(
        DataFile(
            names=("cifar-10-batches-bin/", "cifar-10-binary.tar", CIFAR_JPEG),
            sha256={CIFAR_JPEG: "1ad627445b8629ff82b88551943f1ac202800b46e74b28ce7626d12a2b8d051d"},
        ),
    ),
    provider="A. Krizhevsky, University of Toronto",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="not stated by the provider; citation asked",
    licence_source="https://huggingface.co/datasets/uoft-cs/cifar10 (licence: unknown)",
    rows_source=COUNTED,
    citation="Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
    survey=SurveyRow(dimensionality="3,072", size="60,000", classes="10"),
    note=f"{_COUNTS_BOTH} {_NO_PICKLE}",
    image_shape=(3, 32, 32),
    reader=read_cifar10,
    stand_ins={"": StandIn(50_000, 10_000, shares=_even(10))},
)
_IMAGENET = DatasetInfo(
    name="imagenet",
    title="ImageNet, ILSVRC 2012",
    files=(make_file("train/", rows=1_281_167), make_file("val/", optional=True)),
    provider="ImageNet (an account is needed)",
    page="https://www.image-net.org/download.php",
    licence="non-commercial research only; may not be passed on",
    citation="Russakovsky et al. (2015), IJCV 115",
    survey=SurveyRow(dimensionality="150,528", size="1,281,167", classes="1000"),
    note=(
        "Validation pictures must be sorted into folders by class. Give n_rows: pictures are "
        "chosen before they are decoded."
    ),
    image_shape=(3, 224, 224),
    reader=read_imagenet,
    stand_ins={"": StandIn(1_281_167, 50_000, shares=_even(1_000))},
)
_LACUNA_10 = DatasetInfo(
    name="lacuna-10",
    title="Lacuna-10 (faces of VGGFace2)",
    folder="vggface2",
    files=(make_file("train/"),),
    provider="VGG, University of Oxford",
    page="https://www.robots.ox.ac.uk/~vgg/data/vgg_face2/",
    licence="withdrawn by the provider; research only, may not be passed on",
    citation="Golatkar, Achille, Soatto (2020), CVPR; Cao et al. (2018), FG",
    subject_id="folder of the person (the class is the person)",
    survey=SurveyRow(dimensionality="1,024", size="≥ 5,000", classes="10"),
    note=(
        "The survey's dimensionality counts pixels; with three colours it is 3,072. Whom "
        "Golatkar et al. drew is not known; people here are drawn with a fixed seed."
    ),
    image_shape=(3, 32, 32),
    reader=read_lacuna,
    stand_ins={"": StandIn(4_000, 1_000, shares=_even(10), class_is_person=True)},
)

_OTHERS = (
    DatasetInfo(
        name="mnist",
        title="MNIST handwritten digits",
        files=(
            _mnist_file(
                "train-images-idx3",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _mnist_file(
                "train-labels-idx1",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _mnist_file(
                "t10k-images-idx3",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            _mnist_file(
                "t10k-labels-idx1",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        provider="LeCun, Cortes, Burges",
        page="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        licence_source=LISTED,
        rows_source=COUNTED,
        citation="LeCun, Bottou, Bengio, Haffner (1998), Proc. IEEE 86(11)",
        survey=SurveyRow(dimensionality="784", size="60,000", classes="10"),
        note="Writers are not named in these files. Digits 3 and 8: 11,982 training rows.",
        variants={
            "ten": "all digits",
            "3-vs-8": "digits 3 (0) and 8 (1), as in Mahadevan and Mathioudakis",
        },
        image_shape=(1, 28, 28),
        reader=read_mnist,
        stand_ins={
            "ten": StandIn(60_000, 10_000, shares=_even(10)),
            "3-vs-8": StandIn(11_982, 1_984, shares=(0.5117, 0.4883)),
        },
    ),
    DatasetInfo(
        name="covtype",
        title="Covertype",
        files=(
            DataFile(
                names=("covtype.data", "covtype.random15k.csv"),
                sha256={
                    "covtype.random15k.csv": (
                        "f8e8661a50096cbdd70f5706953777efceda260dbf92bfc358ce041c233728dd"
                    )
                },
                rows={"covtype.data": 581_012},
            ),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/31/covertype",
        licence=CC_BY,
        licence_source=LISTED,
        rows_source=_COUNTED_SAMPLE,
        citation="Blackard (1998), Covertype, doi:10.24432/C50K5N",
        survey=SurveyRow(dimensionality="54", size="581,012", classes="7"),
        note=(
            "covtype.random15k.csv is a random sample of 15,000 rows with a header. Provider's "
            "indicators are columns already. No split: see Dataset.split."
        ),
        variants={
            "multiclass": "seven cover types",
            "binary": "cover type 2 against the rest, as in Mahadevan and Mathioudakis",
        },
        reader=read_covtype,
        stand_ins={
            "multiclass": StandIn(581_012, n_numbers=10, n_words=(4, 40), shares=_COVTYPE_SHARES),
            "binary": StandIn(581_012, n_numbers=10, n_words=(4, 40), shares=(0.5124, 0.4876)),
        },
    ),
    DatasetInfo(
        name="higgs",
        title="HIGGS",
        files=(
            DataFile(
                names=("HIGGS.csv", "higgs.csv"),
                sha256={
                    "higgs.csv": "21f8b95e4aaed9e631a76d69c724bb0ca94456bc1ac01e18fd81b968dd3c9724"
                },
                rows={"HIGGS.csv": 11_000_000},
            ),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/280/higgs",
        licence=CC_BY,
        licence_source=LISTED,
        rows_source=_COUNTED_SAMPLE,
        citation="Whiteson (2014), HIGGS, doi:10.24432/C5V312",
        survey=SurveyRow(dimensionality="28", size="11,000,000", classes="2", balance="53.00%"),
        note=(
            "higgs.csv is a random sample of 10,984 rows with a header and the label last. The "
            "provider's habit of testing on the last 500,000 rows is not followed: see "
            "Dataset.split."
        ),
        reader=read_higgs,
        stand_ins={"": StandIn(11_000_000, n_numbers=28, shares=(0.47, 0.53))},
    ),
    DatasetInfo(
        name="epsilon",
        title="Epsilon (PASCAL Large Scale Learning Challenge 2008)",
        files=(
            make_file("epsilon_normalized", rows=400_000),
            make_file("epsilon_normalized.t", rows=100_000, optional=True),
        ),
        provider=_LIBSVM,
        page=f"{_LIBSVM_PAGE}#epsilon",
        licence="not stated by the provider",
        rows_source="https://catboost.ai/docs/en/concepts/python-reference_datasets_epsilon",
        citation="Sonnenburg et al. (2008), PASCAL Large Scale Learning Challenge",
        survey=SurveyRow(dimensionality="2,000", size="400,000", classes="2", balance="50.00%"),
        note="X takes 3.2 GB.",
        reader=partial(read_svm, width=2_000, is_dense=True),
        stand_ins={"": StandIn(400_000, 100_000, n_numbers=2_000)},
    ),
    replace(
        _CIFAR_10,
        name="cifar-2",
        title="CIFAR-2",
        survey=SurveyRow(dimensionality="3,072", size="12,000", classes="2", balance="50.00%"),
        note=f"Cats and ships of CIFAR-10, 10,000 to train on. {_CIFAR_10.note}",
        reader=partial(read_cifar10, kinds=("cat", "ship")),
        stand_ins={"": StandIn(10_000, 2_000, shares=_even(2))},
    ),
    _CIFAR_10,
    replace(
        _CIFAR_10,
        name="cifar-100",
        title="CIFAR-100",
        folder="cifar100",
        files=(make_file("cifar-100-binary/", "cifar-100-binary.tar"),),
        licence_source=UNVERIFIED,
        rows_source=UNVERIFIED,
        survey=SurveyRow(dimensionality="3,072", size="60,000", classes="100"),
        reader=read_cifar100,
        stand_ins={"": StandIn(50_000, 10_000, shares=_even(100))},
    ),
    DatasetInfo(
        name="lsun",
        title="LSUN, ten scenes",
        files=(
            *(make_file(f"{scene}_train/") for scene in SCENES),
            *(make_file(f"{scene}_val/", optional=True) for scene in SCENES),
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
        reader=read_lsun,
        stand_ins={"": StandIn(1_000_000, 3_000, shares=_even(10))},
    ),
    DatasetInfo(
        name="sst",
        title="Stanford Sentiment Treebank",
        files=(
            make_file("trees/train.txt", "train.txt", rows=8_544),
            make_file("trees/test.txt", "test.txt", rows=2_210),
        ),
        provider="Stanford NLP Group (trainDevTestTrees_PTB.zip)",
        page="https://nlp.stanford.edu/sentiment/",
        licence="not stated by the provider; citation asked",
        citation="Socher et al. (2013), EMNLP",
        survey=SurveyRow(dimensionality="215,154", size="11,855", classes="5"),
        note=(
            "The survey's dimensionality is the number of distinct phrases, its size counts "
            "train, dev and test; dev is not read. Guo et al. used features of a pretrained "
            "net. Fixed: the list of words. X is a sparse table."
        ),
        variants={
            "five": "very negative to very positive",
            "binary": "negative or positive; neutral sentences are left out",
        },
        reader=read_sst,
        stand_ins={
            "five": StandIn(8_544, 2_210, n_sparse=16_000, shares=(0.128, 0.26, 0.19, 0.272, 0.15)),
            "binary": StandIn(6_920, 1_821, n_sparse=16_000, shares=(0.478, 0.522)),
        },
    ),
    DatasetInfo(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        files=(make_file("train_32x32.mat", rows=73_257), make_file("test_32x32.mat", rows=26_032)),
        provider="Stanford University",
        page="http://ufldl.stanford.edu/housenumbers/",
        licence="non-commercial use only",
        licence_source=(
            "https://huggingface.co/datasets/ufldl-stanford/svhn (custom, non-commercial)"
        ),
        citation="Netzer et al. (2011), NIPS Workshop on Deep Learning",
        survey=SurveyRow(dimensionality="3,072", size="73,257", classes="10"),
        image_shape=(3, 32, 32),
        reader=read_svhn,
        stand_ins={"": StandIn(73_257, 26_032, shares=_SVHN_SHARES)},
    ),
    DatasetInfo(
        name="rcv1",
        title="Reuters Corpus Volume 1, two classes",
        files=(
            make_file("rcv1_train.binary", rows=20_242),
            make_file("rcv1_test.binary", rows=677_399, optional=True),
        ),
        provider=_LIBSVM,
        page=f"{_LIBSVM_PAGE}#rcv1.binary",
        licence="vectors only; the texts are under Reuters' agreement",
        citation="Lewis, Yang, Rose, Li (2004), JMLR 5:361-397",
        survey=SurveyRow(dimensionality="47,236", size="20,242", classes="2", balance="52.00%"),
        note="X is a sparse table. Fixed: the provider's list of words and their weights.",
        reader=partial(read_svm, width=47_236, is_dense=False),
        stand_ins={"": StandIn(20_242, 20_000, n_sparse=47_236, shares=(0.48, 0.52))},
    ),
    DatasetInfo(
        name="purchase",
        title="Acquire Valued Shoppers Challenge",
        files=(make_file("transactions.csv"), make_file("trainHistory.csv")),
        provider=KAGGLE,
        page="https://www.kaggle.com/c/acquire-valued-shoppers-challenge/data",
        licence="terms of the competition; may not be passed on",
        citation="Kaggle (2014), Acquire Valued Shoppers Challenge",
        subject_id="id (one row each)",
        survey=SurveyRow(dimensionality="600", size="250,000", classes="2"),
        note=(
            "The published experiments of SISA took clusters of the rows as labels, which "
            "depend on everybody; here y is the provider's answer (repeater), known for "
            "160,057 customers. Fixed: the list of the 600 categories sold most."
        ),
        reader=read_purchase,
        stand_ins={"": StandIn(160_057, n_flags=TOP, shares=(0.729, 0.271))},
    ),
    _IMAGENET,
    replace(
        _IMAGENET,
        name="mini-imagenet",
        title="Mini-ImageNet, all pictures of 100 classes",
        folder="mini-imagenet",
        files=(make_file("train/", rows=128_545), make_file("val/", optional=True)),
        citation="Vinyals et al. (2016), NeurIPS",
        survey=SurveyRow(dimensionality="150,528", size="128,545", classes="100"),
        note=(
            "Folders of the 100 classes; Vinyals et al. took 600 pictures of each, Bourtoule et "
            "al. all of them. Give n_rows: pictures are chosen before they are decoded."
        ),
        stand_ins={"": StandIn(128_545, 5_000, shares=_even(100))},
    ),
    DatasetInfo(
        name="credit-card",
        title="Credit Card Fraud Detection",
        files=(make_file("creditcard.csv", rows=284_807),),
        provider=KAGGLE,
        page="https://www.kaggle.com/datasets/mlg-ulb/creditcardfraud",
        licence="Database Contents License 1.0",
        rows_source=(
            "the provider's description, as quoted by "
            "https://baselight.app/u/kaggle/dataset/saurabhbadole_credit_card_dataset"
        ),
        citation="Dal Pozzolo, Caelen, Johnson, Bontempi (2015), IEEE SSCI",
        survey=SurveyRow(dimensionality="30", size="284,807", classes="2", balance="0.17%"),
        note="The provider's components were computed over all rows; no card is named.",
        reader=read_credit_card,
        stand_ins={"": StandIn(284_807, n_numbers=30, shares=(0.99827, 0.00173))},
    ),
    DatasetInfo(
        name="ctr",
        title="Criteo click logs, first day",
        files=(make_file("day_0"),),
        provider="Criteo AI Lab",
        page="https://ailab.criteo.com/download-criteo-1tb-click-logs-dataset/",
        licence="CC BY-NC-SA 4.0",
        licence_source="https://huggingface.co/datasets/criteo/CriteoClickLogs",
        citation="Criteo AI Lab (2013), Criteo 1TB Click Logs",
        survey=SurveyRow(dimensionality="39", size="1,000,000", classes="2", balance="2.91%"),
        note=(
            "The first million rows and 13 numbers, as in Brophy and Lowd; the survey's 39 "
            "also counts 26 hashed categories."
        ),
        reader=read_ctr,
        stand_ins={"": StandIn(FIRST, n_numbers=13, shares=(0.9709, 0.0291))},
    ),
    DatasetInfo(
        name="twitter",
        title="HSpam14, hashtag-oriented spam",
        files=(make_file("hspam14.tsv", "comments.tsv", "comments.csv"),),
        provider="A. Sun, NTU (ids and labels); texts and authors from Twitter",
        page="https://personal.ntu.edu.sg/axsun/datasets.html",
        licence="research only; may not be passed on",
        citation="Sedhai, Sun (2015), SIGIR, doi:10.1145/2766462.2767701",
        subject_id="user_id",
        survey=SurveyRow(dimensionality="15", size="1,000,000", classes="2", balance="16.93%"),
        note=(
            "A file with a header and the columns user_id, text, label, and any of the seven "
            "figures of Brophy and Lowd; the first million rows are read. Quotes enclose cells "
            "of a .csv only."
        ),
        reader=read_twitter,
        stand_ins={"": StandIn(FIRST, n_numbers=14, shares=(0.8307, 0.1693), rows_per_person=2.0)},
    ),
    _LACUNA_10,
    replace(
        _LACUNA_10,
        name="lacuna-100",
        title="Lacuna-100 (faces of VGGFace2)",
        survey=SurveyRow(dimensionality="1,024", size="≥ 50,000", classes="100"),
        stand_ins={"": StandIn(40_000, 10_000, shares=_even(100), class_is_person=True)},
    ),
)
_BY_NAME = {spec.name: spec for spec in (*_OTHERS, *TABLE_SPECS)}
SPECS = {name: _BY_NAME[name] for name in _ORDER}
