"""Ray clusters on this machine, with little memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FEW_BYTES = 80 << 20
"""Of the object store of a node."""


@contextmanager
def cluster(directory, nodes: int) -> Iterator:
    """So many nodes in processes of their own, on loopback."""
    # jsonschema, which every process of Ray imports, spends seconds on this one where development tools brought it
    (directory / "rfc3987_syntax.py").write_text("raise ImportError\n")
    settings = {
        "PYTHONPATH": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_agent_register_timeout_ms": "240000",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray
    from ray.cluster_utils import Cluster

    node = {
        "num_cpus": 1,
        "node_ip_address": "127.0.0.1",
        "object_store_memory": FEW_BYTES,
        "include_log_monitor": False,
    }
    made = Cluster()
    try:
        _patiently(lambda: made.add_node(**node, include_dashboard=False, no_monitor=True))
        for _ in range(nodes - 1):
            _patiently(lambda: made.add_node(**node))
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _patiently(start: Callable[[], object]) -> None:
    """Ray gives a node 30 s to come up, and a busy machine may need more: what was imported once is quicker again."""
    for left in (3, 2, 1, 0):
        try:
            start()
            return
        except Exception as failure:
            if "timed out during startup" not in str(failure) or not left:
                raise
