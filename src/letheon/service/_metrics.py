"""What Prometheus scrapes: calls, requests by state, overdue ones, jobs, the age of the worker."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from letheon.ledger import Ledger
from letheon.ledger.tables import deliveries, jobs

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class _OfLedger(Collector):
    """Gauges that are read from the ledger when they are asked for."""

    def __init__(self, ledger: Ledger, has_worker: Callable[[], bool] | None) -> None:
        self._ledger = ledger
        self._has_worker = has_worker

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        counts = self._ledger.count_requests()
        by_state = GaugeMetricFamily("letheon_requests", "Requests by state.", labels=["state"])
        for state, number in counts.by_state.items():
            by_state.add_metric([state], number)
        yield by_state
        yield GaugeMetricFamily(
            "letheon_requests_overdue", "Open requests past their day.", value=counts.overdue
        )
        yield from self._queues()
        if self._has_worker is not None:
            yield GaugeMetricFamily(
                "letheon_worker_up", "Whether the worker runs.", value=int(self._has_worker())
            )

    def _queues(self) -> Iterator[GaugeMetricFamily]:
        waiting = deliveries.c.delivered_at.is_(None) & deliveries.c.given_up_at.is_(None)
        with self._ledger._core.database.reading() as conn:
            n_jobs = conn.scalar(
                select(func.count()).where(jobs.c.state.in_(("queued", "running")))
            )
            n_deliveries = conn.scalar(select(func.count()).where(waiting))
        yield GaugeMetricFamily("letheon_jobs_open", "Jobs that are not done.", value=n_jobs or 0)
        yield GaugeMetricFamily(
            "letheon_webhooks_waiting", "Calls of webhooks to be made.", value=n_deliveries or 0
        )


class Metrics:
    """The metrics of one server.

    Parameters
    ----------
    ledger : Ledger
        Whose desk it is.
    has_worker : callable, optional
        Whether the worker runs.
    """

    def __init__(self, ledger: Ledger, has_worker: Callable[[], bool] | None) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._calls = Counter(
            "letheon_calls", "Calls of the desk.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "letheon_call_seconds",
            "Time of a call.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_OfLedger(ledger, has_worker))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        self._calls.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return what a scrape gets."""
        found: Any = generate_latest(self._registry)
        return bytes(found)
