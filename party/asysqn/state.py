"""Where a party of an AsySQN run is: what its checkpoint holds, and the one place that has the newest of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.party.asysqn import steps as asysqn
from parley.party.roles import CheckpointMissing, scalar
from parley.protocols.asysqn.messages import RowsName

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LoopState:
    """All that a party needs to go on."""

    state: asysqn.State
    others: Vector
    """The other parties' part of θ, one number for each training row, as it was last read."""
    calls: int = 0
    """Sums asked for, snapshots included."""
    updates_alone: int = 0
    """Updates made without a complete sum."""
    k: int = 0
    """The checkpoint that this is."""
    pending: RowsName | None = None
    """Rows whose sum is under way (synchronous)."""


@dataclass
class Latest:
    """The newest state of an asynchronous party. Its update loop replaces it; answers and evaluations only read it."""

    loop_state: LoopState


def to_tensors(loop_state: LoopState) -> dict[str, Tensor]:
    """The state as a checkpoint holds it."""
    arrays = asysqn.to_arrays(loop_state.state) | {"others": loop_state.others}
    counts = {"calls": loop_state.calls, "updates_alone": loop_state.updates_alone, "k": loop_state.k}
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()} | {
        name: scalar(count) for name, count in counts.items()
    }


def from_tensors(tensors: Mapping[str, Tensor], columns: int) -> LoopState:
    """The state that `to_tensors` wrote, of a block with so many columns."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if "others" not in arrays or arrays["weights"].shape != (columns,):
        raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
    calls, alone, k = (int(arrays.pop(name)) for name in ("calls", "updates_alone", "k"))
    others = arrays.pop("others").copy()
    return LoopState(asysqn.from_arrays(arrays), others, calls, alone, k)
