"""Unlearners that cheat, each in one way, and an honest one.

`seconds` is a clock of their own: a training takes one second of it, a call of `forget` a
hundredth. Tests put it in the place of the clocks of `time`, so that no real time is measured.
"""

import _thread
import hashlib
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.tree import DecisionTreeClassifier

from letheon.guarantee import Guarantee, MethodFacts
from letheon.receipt import Receipt
from tests.evaluation.stubs import FACTS

FIT_SECONDS, CALL_SECONDS = 1.0, 0.01


def burn(seconds: float) -> None:
    """Use so much processor time, however long that takes on a busy machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class HonestMethod(ClassifierMixin, BaseEstimator):
    """Retrains a tree in every request."""

    facts: ClassVar[MethodFacts] = FACTS
    seconds: ClassVar[float] = 0.0
    diary: ClassVar[list[str]] = []

    def __init__(self, *, kind: str = "empirical", random_state: Any = None) -> None:
        self.kind = kind
        self.random_state = random_state

    @staticmethod
    def take(seconds: float) -> None:
        """Let the clock run."""
        HonestMethod.seconds += seconds

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        self.diary.append("fit")
        self.seed_ = 0 if self.random_state is None else self.random_state
        self.rows_: tuple[Any, ...] = (
            np.asarray(X),
            np.asarray(y),
            np.arange(len(y)) if ids is None else ids,
        )
        self.classes_ = np.unique(y)
        self.n_requests_ = 0
        self.train()
        return self

    def train(self) -> None:
        """Train on the rows held."""
        X, y, _ = self.rows_
        self.take(FIT_SECONDS)
        self.tree_ = DecisionTreeClassifier(random_state=self.seed_ % 2**31).fit(X, y)

    def forget(self, ids: Any) -> Receipt:
        self.take(CALL_SECONDS)
        self.n_requests_ += 1
        kept = ~np.isin(self.rows_[2], self.whom(ids))
        self.rows_ = tuple(part[kept] for part in self.rows_)
        self.update()
        return Receipt(
            method="cheat",
            n_ids=len(ids),
            n_rows=len(ids),
            guarantee=self.guarantee_,
            seconds=0.0,
            work=self.work(),
        )

    def whom(self, ids: Any) -> Any:
        return ids

    def update(self) -> None:
        """Bring the model up to date after a request."""
        self.train()

    def work(self) -> float:
        return 1.0

    @property
    def guarantee_(self) -> Guarantee:
        return Guarantee(kind=self.kind, reference="none")  # type: ignore[arg-type]

    def digest(self) -> str:
        tree = self.tree_.tree_
        parts = (tree.feature, tree.threshold, tree.value)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> Any:
        return self.tree_.predict_proba(X)


class Lazy(HonestMethod):
    """Trains when it is asked for an answer, or for a digest."""

    def update(self) -> None:
        self.is_old_ = True

    def settle(self) -> None:
        if getattr(self, "is_old_", False):
            self.is_old_ = False
            self.train()

    def predict_proba(self, X: Any) -> Any:
        self.settle()
        return super().predict_proba(X)


class LazyUntilDigest(Lazy):
    """Answers with the old model until its digest is asked for."""

    def predict_proba(self, X: Any) -> Any:
        return HonestMethod.predict_proba(self, X)

    def digest(self) -> str:
        self.settle()
        return super().digest()


class LazyUntilScore(LazyUntilDigest):
    """Answers with the old model until its score is asked for."""

    digest = HonestMethod.digest

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        self.settle()
        return float(super().score(X, y, sample_weight=sample_weight))


class LazyUntilPickled(LazyUntilDigest):
    """Answers with the old model until it is saved."""

    digest = HonestMethod.digest

    def __getstate__(self) -> Any:
        self.settle()
        return super().__getstate__()


class LazyForOtherRows(LazyUntilDigest):
    """Answers with the old model while it is asked about as many rows as the first time."""

    digest = HonestMethod.digest

    def predict_proba(self, X: Any) -> Any:
        self.n_asked_ = getattr(self, "n_asked_", len(X))
        if len(X) != self.n_asked_:
            self.settle()
        return HonestMethod.predict_proba(self, X)


class LazyUntilDecision(LazyUntilDigest):
    """Answers with the old model until it is asked for its decision function."""

    digest = HonestMethod.digest

    def decision_function(self, X: Any) -> Any:
        self.settle()
        return HonestMethod.predict_proba(self, X)[:, -1]


class LazyUntilSecondAnswer(Lazy):
    """Answers with the old model at first: labels and probabilities are two calls."""

    def update(self) -> None:
        super().update()
        self.n_calls_ = 0

    def settle(self) -> None:
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        if self.n_calls_ > 2:
            super().settle()


class SlowAfterFit(Lazy):
    """Its answers before the first request take as long as what it puts off later."""

    def predict_proba(self, X: Any) -> Any:
        if not self.n_requests_:
            self.take(FIT_SECONDS)
        return super().predict_proba(X)


class SlowRetrain(HonestMethod):
    """Trains slowly when it is a baseline, which has fewer rows."""

    n_rows: ClassVar[int] = 0

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        SlowRetrain.n_rows = max(self.n_rows, len(y))
        if len(y) < self.n_rows:
            self.take(9 * FIT_SECONDS)
        return super().fit(X, y, ids=ids)


class StopsTime(HonestMethod):
    """Replaces the clocks of the process by ones that stand still."""

    def update(self) -> None:
        time.perf_counter = time.process_time = time.thread_time = lambda: 0.0
        super().update()


class Threaded(HonestMethod):
    """Returns at once and trains in a thread."""

    def update(self) -> None:
        self.diary.append("begin")
        threading.Thread(target=self.work_on).start()

    def work_on(self) -> None:
        burn(0.06)
        self.train()
        self.diary.append("end")


class RawThread(Threaded):
    """The same in a thread that Python does not list, and that begins a little later."""

    def update(self) -> None:
        self.diary.append("begin")
        _thread.start_new_thread(self.wait_and_work_on, ())

    def wait_and_work_on(self) -> None:
        time.sleep(0.003)
        self.work_on()


class LatePool(Threaded):
    """Leaves the work to a pool that begins after a while."""

    pool: ClassVar[ThreadPoolExecutor] = ThreadPoolExecutor(1)

    def update(self) -> None:
        self.diary.append("begin")
        self.pool.submit(self.wait_and_work_on)

    def wait_and_work_on(self) -> None:
        time.sleep(0.1)
        self.work_on()


class JoinsThread(HonestMethod):
    """Works in a thread, and waits for it."""

    def train(self) -> None:
        burn(0.03)
        super().train()

    def update(self) -> None:
        thread = threading.Thread(target=self.train)
        thread.start()
        thread.join()


class WithProcess(HonestMethod):
    """Returns at once and leaves the work to another process."""

    children: ClassVar[list[Any]] = []
    cost: ClassVar[float] = 0.3

    def update(self) -> None:
        code = f"import time\nwhile time.process_time() < {self.cost}: pass"
        self.children.append(subprocess.Popen([sys.executable, "-SEc", code]))


class WithEndlessProcess(WithProcess):
    """Its process works for longer than anyone waits."""

    cost = 300.0


class WithSleeper(HonestMethod):
    """Leaves a thread that does nothing yet."""

    stop: ClassVar[threading.Event] = threading.Event()

    def update(self) -> None:
        if self.n_requests_ == 1:
            threading.Thread(target=self.stop.wait, args=(60,), daemon=True).start()
        self.train()


class Keeps(HonestMethod):
    """Keeps the model that knows the people."""

    def update(self) -> None:
        pass


class FalseDigest(Keeps):
    """Says that it is exact, and that its bytes are always the same."""

    def digest(self) -> str:
        return "the same"


class CountsNoRows(HonestMethod):
    """Its receipts count no rows."""

    def forget(self, ids: Any) -> Receipt:
        return replace(super().forget(ids), n_rows=0)


class ClonesAnother(Keeps):
    """What is cloned is honest."""

    def __sklearn_clone__(self) -> Any:
        return HonestMethod(kind=self.kind, random_state=self.random_state)


class ClonesItself(Keeps):
    """All its clones are one object."""

    def __sklearn_clone__(self) -> Any:
        return self


class Half(HonestMethod):
    """Forgets every other person."""

    def whom(self, ids: Any) -> Any:
        return np.asarray(ids)[::2]


class Noisy(Keeps):
    """Keeps the model, and hides that by noise on its answers."""

    def predict_proba(self, X: Any) -> Any:
        p = super().predict_proba(X)
        if not self.n_requests_:
            return p
        noise = np.random.default_rng().random(p.shape)
        return (p + 0.3 * noise) / (p + 0.3 * noise).sum(axis=1, keepdims=True)


class Remembers(HonestMethod):
    """Its state is that of a retrain, but it answers from a memory that all models share."""

    memory: ClassVar[dict[str, Any]] = {}

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        self.key_ = secrets.token_hex()
        return super().fit(X, y, ids=ids)

    def update(self) -> None:
        self.memory.setdefault(self.key_, self.tree_)
        self.train()

    def predict_proba(self, X: Any) -> Any:
        return self.memory.get(self.key_, self.tree_).predict_proba(X)


class SharesResults(HonestMethod):
    """Looks up what any model has trained on the same rows before."""

    memory: ClassVar[dict[bytes, Any]] = {}

    def train(self) -> None:
        key = np.sort(self.rows_[2]).tobytes()
        if key not in self.memory:
            super().train()
            self.memory[key] = self.tree_
        self.tree_ = self.memory[key]


class ClaimsLittle(HonestMethod):
    """Trains anew each time and says that this was a thousandth of the work."""

    def work(self) -> float:
        return 0.001


class ClaimsConstant(HonestMethod):
    """Its requests take longer and longer, and it says that they do not."""

    def update(self) -> None:
        self.take(0.5 * self.n_requests_ * FIT_SECONDS)
        super().update()


class TimedDummy(DummyClassifier):  # type: ignore[misc]
    """A constant that takes as long to train as the others."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        HonestMethod.diary.append("baseline")
        # Times that never vary have no interval.
        HonestMethod.take(FIT_SECONDS * (1 + 0.05 * (len(HonestMethod.diary) % 3)))
        return super().fit(X, y, sample_weight)
