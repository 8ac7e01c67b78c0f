"""A desk with many requests, and the response times of its lists."""

import http.client
import json
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.ledger import Ledger, Policy
from letheon.service import Tokens

MODEL, LOADED = "risk", "load"
N_THREADS = 32
ERASED_PER_BATCH = 200
N_BATCHES = 5
SEED = 8


@dataclass(frozen=True)
class Filled:
    """The admin token of the ledger, and the seconds it took to fill."""

    token: str
    seconds: float


def fill_ledger(home: Path, n_requests: int, n_load: int, *, database: str | None = None) -> Filled:
    """Create a ledger with two models: one with requests in all states, one for the load test.

    Most requests wait for verification or are queued; a few are erased with certificates, a few are
    rejected or cancelled. All are filed by the function that the desk uses.
    """
    start = time.perf_counter()
    policy = Policy(pin_seconds=1, k_min=10**9)
    with Ledger.create(home, name="bench", database=database, policy=policy) as ledger:
        _register_models(ledger, MODEL, n_requests)
        _register_models(ledger, LOADED, n_load)
        text, _ = Tokens(ledger, lambda: int(time.time())).create("bench", "admin", days=30)
        for number in range(N_BATCHES):
            people = range(number * ERASED_PER_BATCH, (number + 1) * ERASED_PER_BATCH)
            _file_requests(ledger, people, is_verified=lambda _: True)
            ledger.run_once(force=True)
        draw = random.Random(SEED)
        chosen = [draw.random() < 0.6 for _ in range(n_requests)]
        left = range(N_BATCHES * ERASED_PER_BATCH, n_requests)
        _file_requests(ledger, left, is_verified=chosen.__getitem__)
        for request in ledger.requests.find(states=("received",), limit=200).items:
            ledger.requests.cancel(request.id)
    return Filled(text, time.perf_counter() - start)


def _register_models(ledger: Ledger, name: str, n_rows: int) -> None:
    X = np.random.default_rng(SEED).normal(size=(n_rows, 2))
    y = (X[:, 0] > 0).astype(int)
    ids = list(range(n_rows))
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    ledger.models.register(model, X, y, ids=ids, name=name)


def _file_requests(ledger: Ledger, people: range, *, is_verified: object) -> None:
    def one(person: int) -> None:
        ledger.requests.submit([person], model=MODEL, verified=is_verified(person))  # type: ignore[operator]

    with ThreadPoolExecutor(N_THREADS) as pool:
        for _ in pool.map(one, people, chunksize=100):
            pass


N_WARM = 3


class Times(NamedTuple):
    """Response times of one list, in milliseconds."""

    path: str
    p50: float
    p95: float
    p99: float
    kib: float


class Caller:
    """A persistent connection.

    Parameters
    ----------
    url, token : str
        The desk, and an admin token.
    """

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._place = (place.hostname or "localhost", place.port)
        self._http = http.client.HTTPConnection(*self._place, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._headers["Cookie"] = self._logged_in(token)

    def get(self, path: str) -> bytes:
        """Return the body of a response; any status except 200 is an error."""
        # Pages need a session and the API needs a token: both are sent.
        headers = self._headers if path.startswith("/api/") else {"Cookie": self._headers["Cookie"]}
        self._http.request("GET", path, headers=headers)
        answer = self._http.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return body

    def json(self, path: str) -> Any:
        """Return the JSON of a response."""
        return json.loads(self.get(path))

    def _logged_in(self, token: str) -> str:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self._http.request("POST", "/login", body=f"token={quote(token)}", headers=form)
        answer = self._http.getresponse()
        answer.read()
        cookie = re.search(r"letheon_session=[^;]+", answer.getheader("Set-Cookie") or "")
        if cookie is None:
            raise RuntimeError(f"no session: {answer.status}")
        return cookie[0]


def _list_filters(caller: Caller) -> Iterator[str]:
    """Yield queries of the request list, including its last pages."""
    first = caller.json("/api/v1/requests?limit=200")
    yield from ("", "state=all", "order=newest", "overdue=true", "regime=ccpa", f"model={MODEL}")
    yield from ("state=queued", "state=received&state=verified", "limit=200")
    yield f"search={first['items'][0]['id'][:4]}"
    yield "search=%231"
    after, far = first["next"], None
    for _ in range(20):  # 200 per page: later pages are not slower
        far = after or far
        after = caller.json(f"/api/v1/requests?limit=200&after={after}")["next"] if after else None
    yield f"after={far}"


def list_paths(caller: Caller) -> list[str]:
    """Return the paths of all lists; raise an error if a paged list of the API is missing."""
    filters = list(_list_filters(caller))
    urls = [f"/requests?{one}" for one in filters if not one.startswith("limit")]
    urls += [f"/api/v1/requests?{one}" for one in filters if "all" not in one]
    urls += ["/", "/models", f"/models/{MODEL}", f"/models/{MODEL}/plan", "/certificates"]
    urls += ["/audits", "/residue", "/tokens", "/webhooks", "/api/v1/summary"]
    urls += [f"/api/v1/models/{MODEL}/{one}" for one in ("versions", "history")]
    names = "models batches certificates chain residue jobs audits tokens webhooks"
    urls += [f"/api/v1/{name}" for name in names.split()]
    document = caller.json("/openapi.json")["paths"]
    paged = {
        path.format(model=MODEL, webhook_id="-")
        for path, operations in document.items()
        for operation in operations.get("get", {}).get("parameters", ())
        if operation["name"] == "after" and "{webhook_id}" not in path
    }
    missing = paged - {path.partition("?")[0] for path in urls} - {"/api/v1/requests.csv"}
    if missing:
        raise RuntimeError(f"paged lists that are not measured: {sorted(missing)}")
    return urls


def time_list(caller: Caller, path: str, n: int) -> Times:
    """Call a list `n` times and return its quantiles."""
    sizes = [len(caller.get(path)) for _ in range(N_WARM)]
    times = []
    for _ in range(n):
        start = time.perf_counter()
        caller.get(path)
        times.append(1000 * (time.perf_counter() - start))
    p50, p95, p99 = np.percentile(times, (50, 95, 99))
    shown = re.sub(r"after=.*", "after=(the far end)", path)
    return Times(shown, p50, p95, p99, sizes[-1] / 1024)
