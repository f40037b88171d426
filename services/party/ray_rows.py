"""Rows on a Ray cluster of the party's own: every shard of a table is an actor that holds its part.

Nothing of the federation runs there: an actor gets features, a function of Parley and its arguments, and answers to the
party process, where the gate is. A batch smaller than `minimum_rows` is worked on here, shard by shard as there, so
that its bits are the same. An actor that is lost with its node is made again elsewhere from the party's own table.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.services.party.algorithms import limit_threads
from parley.services.party.config import ComputeConfig, is_loopback
from parley.services.wire.configuration import ConfigInvalid
from parley.services.wire.version import VERSION
from parley.tables.rows import Array, LocalRows, Part, ShardedRows, pieces

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 10.0
PLACEMENT_SECONDS = 120.0
"""How long an actor may take to come up, or to take a piece of its rows; and how long another place is looked for."""
PAUSE_SECONDS = 1.0
ATTEMPTS = 3
"""How often a lost shard is made again for one piece of work, before the party does it itself."""
_AHEAD = 4
"""Pieces of a shard that are on their way at once."""


class VersionsDiffer(RuntimeError):
    """A node of the cluster has another version of Parley."""


class Shard:
    """The part of a table that one actor holds."""

    def __init__(self, version: str, dtype: str, threads: int) -> None:
        if version != VERSION:
            raise VersionsDiffer(
                f"the party has Parley {version}, a node of its cluster {VERSION}: install one of them"
            )
        self._dtype, self._threads = dtype, threads
        self._pieces: list[Array] = []
        self._rows: LocalRows | None = None

    def hold(self, piece: Array) -> None:
        """Take rows, in their order."""
        self._pieces.append(np.array(piece))  # a copy: what came lies in the object store

    def node(self) -> str:
        """Where it stands."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def work(
        self, kind: Literal["map", "fold"], function: Callable[..., Any], rows: NDArray[np.int64], *beside: Array
    ) -> Any:
        """What a function makes of some of the rows."""
        if self._rows is None:
            self._rows = LocalRows(np.concatenate(self._pieces), self._dtype)
            self._pieces = []
        limit_threads(self._threads)  # as in the party: bits may depend on it
        return getattr(self._rows, kind)(function, rows, *beside)


class RayRows(ShardedRows):
    """Rows whose shards are actors; made when the first large batch comes."""

    def __init__(self, values: Any, dtype: str, config: ComputeConfig, threads: int) -> None:
        super().__init__(values, dtype, shards=config.shards)
        self._minimum, self._threads = config.minimum_rows, threads
        self._actors: dict[int, Any] = {}
        self._given_up: set[int] = set()

    def _work(self, kind: Literal["map", "fold"], function: Callable[..., Any], parts: list[Part]) -> list[Any]:
        if sum(len(part.rows) for part in parts) < self._minimum:
            return super()._work(kind, function, parts)
        import ray

        self._place([part.shard for part in parts])
        shared = ray.put(function)
        asked = [self._ask(kind, shared, part) for part in parts]
        return [self._answer(kind, function, shared, part, ref) for part, ref in zip(parts, asked, strict=True)]

    def _ask(self, kind: str, shared: Any, part: Part) -> Any:
        actor = self._actors.get(part.shard)
        return None if actor is None else actor.work.remote(kind, shared, part.rows, *part.beside)

    def _answer(
        self, kind: Literal["map", "fold"], function: Callable[..., Any], shared: Any, part: Part, ref: Any
    ) -> Any:
        """What a shard answers; where it is lost, what it answers once it stands elsewhere."""
        import ray

        for _ in range(ATTEMPTS):
            if ref is None:
                break
            try:
                return ray.get(ref)
            except ray.exceptions.RayTaskError as failure:
                raise failure.cause from None
            except ray.exceptions.RayError as loss:
                logger.warning("shard %d was lost (%s) and is made again", part.shard, type(loss).__name__)
            self._actors.pop(part.shard, None)
            self._place([part.shard])
            ref = self._ask(kind, shared, part)
        self._give_up(part.shard)
        return super()._work(kind, function, [part])[0]

    def _place(self, shards: list[int]) -> None:
        """Make the actors of these shards that are not there, all at once.

        A cluster takes a while to see that a node is gone, and may put an actor there: it is tried again elsewhere.
        """
        missing = [shard for shard in shards if shard not in self._actors and shard not in self._given_up]
        deadline = time.monotonic() + PLACEMENT_SECONDS
        while missing:
            started = {shard: self._start() for shard in missing}
            self._actors |= {shard: actor for shard, actor in started.items() if self._fill(actor, shard)}
            missing = [shard for shard in missing if shard not in self._actors]
            if missing and time.monotonic() > deadline:
                for shard in missing:
                    self._give_up(shard)
                return
            if missing:
                time.sleep(PAUSE_SECONDS)

    def _start(self) -> Any:
        import ray

        # No processor is reserved: shards may be more than processors, and a node works on them one after the other.
        kind = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Shard)
        return kind.remote(VERSION, self.dtype.name, self._threads)

    def _fill(self, actor: Any, shard: int) -> bool:
        """Send a shard its rows, a few pieces ahead; whether it took them."""
        import ray

        values = self._values[self._bounds[shard] : self._bounds[shard + 1]]
        smaller = min(np.dtype(values.dtype), self.dtype, key=lambda kind: kind.itemsize)
        under_way: list[Any] = []
        try:
            for piece in pieces(len(values)):
                under_way.append(actor.hold.remote(np.ascontiguousarray(values[piece], dtype=smaller)))
                if len(under_way) == _AHEAD:
                    ray.get(under_way.pop(0), timeout=PLACEMENT_SECONDS)
            ray.get(under_way, timeout=PLACEMENT_SECONDS)
        except ray.exceptions.RayTaskError as failure:
            raise failure.cause from None
        except ray.exceptions.ActorDiedError as death:
            if VersionsDiffer.__name__ in str(death):  # it died of it at its start, and Ray has but the text
                raise VersionsDiffer(
                    "a node of the cluster has another version of Parley than the party: install the same on all nodes"
                ) from None
            logger.warning("shard %d was lost while it took its rows", shard)
        except ray.exceptions.RayError as loss:
            logger.warning("shard %d did not take its rows (%s)", shard, type(loss).__name__)
        else:
            return True
        ray.kill(actor)
        return False

    def _give_up(self, shard: int) -> None:
        if shard not in self._given_up:
            logger.warning("shard %d stands nowhere in the cluster: the party works on its rows itself", shard)
        self._given_up.add(shard)
        self._actors.pop(shard, None)


class RayEngine:
    """A connection to the party's cluster."""

    def __init__(self, config: ComputeConfig, threads: int) -> None:
        self._config, self._threads = config, threads

    def rows(self, values: Any, dtype: str) -> RayRows:
        """These rows in shards."""
        return RayRows(values, dtype, self._config, self._threads)


def connect(config: ComputeConfig, threads: int) -> RayEngine:
    """Join the cluster, or raise ConfigInvalid.

    Ray reads its keys from the environment of the process, so it is imported after they are set.
    """
    os.environ.update(config.environment)
    try:
        import ray
    except ImportError:
        raise ConfigInvalid("`compute.engine: ray` needs Ray: pip install 'parley-fl[ray]'") from None
    try:
        socket.create_connection(config.host_and_port, CONNECT_SECONDS).close()  # Ray itself would try for minutes
        ray.init(config.address, namespace="parley", log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as failure:
        cause = " ".join(str(failure).split())[:300]
        raise ConfigInvalid(
            f"no Ray cluster answers at `compute.address` {config.address} ({cause}): start a node of it on this "
            "machine (ray start --head --node-ip-address=127.0.0.1), or correct the address, token and certificates"
        ) from None
    abroad = [node["NodeManagerAddress"] for node in ray.nodes() if not is_loopback(node["NodeManagerAddress"])]
    if abroad and not config.is_protected:
        ray.shutdown()
        raise ConfigInvalid(
            f"the cluster at {config.address} has nodes beyond this machine, and rows would cross the network in "
            "clear: give `compute.token` and `compute.tls`, and start the nodes with them"
        )
    logger.info("rows are worked on by %d nodes", len(ray.nodes()))
    return RayEngine(config, threads)
