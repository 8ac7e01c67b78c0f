"""A forest on a mixed frame in the ledger and in an audit."""

from pathlib import Path

from letheon import DaREForestClassifier
from letheon.audit import audit
from letheon.ledger import Ledger
from tests.audit.bundles import verdicts
from tests.pipelines.people import LEAVING, PEOPLE, mixed_frame, target


def test_a_forest_with_categories_forgets_in_the_ledger_and_is_audited(tmp_path: Path) -> None:
    frame = mixed_frame()
    rows = (frame, target(frame))
    model = DaREForestClassifier(n_estimators=5, class_weight="balanced", random_state=0)
    with Ledger.create(tmp_path / "home", name="mixed") as ledger:
        ledger.models.register(model.fit(*rows, ids=PEOPLE), *rows, ids=PEOPLE, name="forest")
        ledger.requests.submit(LEAVING, model="forest", verified=True)
        steps = ledger.run_once(force=True, model="forest")
        assert [step.what for step in steps] == ["applied", "certified", "purged"]
        report = audit(ledger.export(tmp_path / "bundle", tier="auditor"), key=ledger.public_key)
    assert set(verdicts(report).values()) == {"pass"}
