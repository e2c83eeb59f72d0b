"""Ray cluster of two nodes on this machine; the worker node can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
"""Settings of Ray; the health checks notice a dead node within seconds instead of half a minute."""
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a cluster of one head node and one node in `worker_nodes`; stop it at the end."""
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def kill_a_node(cluster: Any) -> None:
    """Stop the worker node immediately, like a power failure."""
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
