"""200 clients at once, with repeats and clients that hang up: nothing is lost or doubled."""

from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.ledger import Ledger
from tests.service.crowd import FilingClients, FilingOrder, repeat_each
from tests.service.servers import serving

N_PEOPLE = 400
MODEL = "crowded"


def make_ledger(home: Path) -> None:
    X = np.random.default_rng(0).normal(size=(N_PEOPLE, 2))
    y = (X[:, 0] > 0).astype(int)
    ids = list(range(N_PEOPLE))
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    with Ledger.create(home, name="load") as ledger:
        ledger.models.register(model, X, y, ids=ids, name=MODEL)


def test_a_crowd_loses_and_doubles_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_ledger(home)
    orders = [FilingOrder(f"key-{number}", number) for number in range(N_PEOPLE)]
    with serving(home, "--no-worker") as server:
        crowd = FilingClients(server.url, server.tokens["admin"], MODEL)
        crowd.send(repeat_each(orders))
    assert len(crowd.answers) == 2 * N_PEOPLE
    assert crowd.n_hung_up > N_PEOPLE // 10
    assert {response.status for response in crowd.answers} <= {200, 201}
    ids = {(response.key, response.request) for response in crowd.answers}
    assert len(ids) == N_PEOPLE, "one request for each key, the same for each repeat"
    with Ledger.open(home) as ledger:
        stored = [request_item.id for request_item in ledger.requests.iterate()]
    assert sorted(stored) == sorted(request for _, request in ids)
    news = Counter(response.key for response in crowd.answers if response.status == 201)
    assert max(news.values()) == 1, "at most one of those who asked was told that it is new"
