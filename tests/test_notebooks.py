"""What notebooks, logs and `show_versions` show: tables and numbers, never an id, seed or path."""

import getpass
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer

import letheon
from letheon import DaREForestClassifier, InfluenceClassifier, NaiveUnlearner, SISAClassifier
from letheon.guarantee import Guarantee
from letheon.monitor import History
from letheon.preprocessing import ForgetColumnTransformer, StandardScaler

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
IDS = [f"secret-{row // 2:02d}" for row in range(40)]
MODELS: dict[str, Callable[[], Any]] = {
    "shards": lambda: SISAClassifier(LogisticRegression(), n_shards=2),
    "forest": lambda: DaREForestClassifier(n_estimators=2),
    "linear": lambda: InfluenceClassifier(sigma=1.0),
    "pipeline": lambda: letheon.ForgetPipeline(
        [("norm", letheon.DataIndependent(Normalizer())), ("model", InfluenceClassifier())]
    ),
}


def fitted(name: str) -> Any:
    return MODELS[name]().fit(X, Y, ids=IDS)


@pytest.mark.parametrize("name", MODELS)
def test_the_page_of_a_model_shows_its_guarantee_and_no_secret(name: str) -> None:
    model = fitted(name)
    page = model._repr_html_()
    attributes = model._get_fitted_attr_html()
    assert attributes["Rows"] == "40"
    assert str(model.guarantee_) == attributes["Guarantee"]
    assert attributes._repr_html_inner() in page or not hasattr(
        super(letheon.ForgetMixin, model), "_get_fitted_attr_html"
    )
    for secret in ("secret-", str(model.seed_), "noise_commitment_", "release_salt_"):
        assert secret not in page


def test_a_fitted_pipeline_with_pipelines_inside_has_a_page() -> None:
    inside = letheon.ForgetPipeline([("scale", StandardScaler())])
    columns = ForgetColumnTransformer([("numbers", inside, [0, 1])])
    model: Any = letheon.ForgetPipeline([("columns", columns), ("model", InfluenceClassifier())])
    page = model.fit(X, Y, ids=IDS)._repr_html_()
    assert "columns: ForgetColumnTransformer" in page
    assert "<div>StandardScaler</div>" in page  # the diagram has the steps of the steps
    assert page.count("Fitted model") == 1


def test_a_guarantee_is_an_escaped_table() -> None:
    claim = Guarantee(kind="certified", reference="a < b", epsilon=1.0, delta=1e-4, spent=0.25)
    page = claim._repr_html_()
    assert "<tr><th>Epsilon</th><td>1</td></tr>" in page
    assert "a &lt; b" in page
    assert "Spent" not in page
    assert "Tuning" not in page


def test_an_evaluation_and_a_history_are_tables_and_a_measure_is_text() -> None:
    unlearner = NaiveUnlearner(LogisticRegression(), random_state=0)
    evaluation = letheon.evaluate(
        unlearner, (X, Y, IDS), requests=1, seeds=1, canaries=False, ordinary=LogisticRegression()
    )
    page = evaluation._repr_html_()
    assert page is not None
    assert page.startswith("<pre")
    assert "measure" in page
    assert "time of a retrain" in page
    assert next(iter(evaluation.measures["same algorithm"].values()))._repr_html_() is None
    assert "requests" in str(History()._repr_html_())


@pytest.mark.parametrize("name", MODELS)
def test_logs_say_what_was_done_without_ids(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.DEBUG, logger="letheon"):
        model = fitted(name)
        model.forget(["secret-03", "secret-04"])
        letheon.save(model, tmp_path / "secret-file")
        letheon.load(tmp_path / "secret-file")
    kind = type(model).__name__
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert texts[0].startswith(f"{kind}: {model.facts.method}: forgot 2 people, 4 rows")
    assert texts[-2:] == [f"saved a {kind}", f"loaded a {kind}"]
    assert "secret" not in caplog.text
    assert ("estimator inside shard 0 with" in caplog.text) == (name == "shards")


def test_learning_and_the_steps_of_a_worker_are_logged_without_ids(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("letheon.ledger")
    from tests.ledger.homes import make, person

    with caplog.at_level(logging.INFO, logger="letheon"):
        fitted("forest").learn(X[:2], Y[:2], ids=["secret-90", "secret-91"])
        with make(tmp_path) as ledger:
            ledger.requests.submit([person(1)], model="risk", verified=True)
            ledger.run_once(force=True)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == "DaREForestClassifier: learned; 42 rows now"
    assert "applied risk" in texts
    assert "certified" in " ".join(texts)
    assert "secret" not in caplog.text
    assert person(1) not in caplog.text


def test_library_code_does_not_configure_logging() -> None:
    logger = logging.getLogger("letheon")
    assert logger.level == logging.NOTSET
    assert not logger.handlers


def test_versions_without_paths_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    letheon.show_versions()
    text = capsys.readouterr().out
    assert f"letheon: {letheon.__version__}" in text
    for line in ("System:", "Packages:", "Numerics:", "  numpy: ", "  kernels: "):
        assert line in text
    for private in (str(Path.home()), sys.prefix, f"{getpass.getuser()}/", "pytest"):
        assert private not in text
