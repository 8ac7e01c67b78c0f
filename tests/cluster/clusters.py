"""A Ray cluster of two nodes on this machine, one of which can be lost."""

import time
from collections.abc import Callable

STORE = 100 * 2**20
# Where the tests want their tasks: every node but the head offers two of these.
SEAT = "seat"
# A dead node is noticed after a second instead of half a minute.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


class RayCluster:
    """A head that runs the tests and one more node, which can be lost and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "_system_config": QUICK}
        )
        self._add_node()

    def _add_node(self) -> None:
        self._node = self._cluster.add_node(
            num_cpus=1, object_store_memory=STORE, resources={SEAT: 2}
        )

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def node_id(self) -> str:
        """The node that is not the head."""
        return str(self._node.node_id)

    def replace_node(self) -> None:
        """Kill the node that is not the head, as a power cut would, and start another."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._add_node()

    def stored_bytes(self) -> int:
        """Bytes in the object stores of all living nodes."""
        import ray
        from ray._private.internal_api import node_stats

        nodes = [node for node in ray.nodes() if node["Alive"]]
        stats = [node_stats(n["NodeManagerAddress"], n["NodeManagerPort"]) for n in nodes]
        return sum(s.store_stats.object_store_bytes_used for s in stats)

    def shutdown(self) -> None:
        self._cluster.shutdown()


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Return whether the condition comes true; clusters free memory a moment later."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
