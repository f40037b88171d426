"""Local rounds of BAMBI behind a party's session."""

from collections.abc import Hashable, Mapping

from google.protobuf.message import Message
from torch import Tensor

import parley.party.bambi.local_rounds as local
from parley.numerics.losses import Loss, Squared, clean_loss
from parley.numerics.optimisers import Moments
from parley.party.bambi.local_rounds import LocalBlock, LocalState, Point
from parley.party.bambi.steps import OutcomeUnexpected
from parley.party.roles import CheckpointMissing, Plan, scalar
from parley.privacy.label_mechanisms import choose_mechanism
from parley.privacy.release import Addend, Release
from parley.protocols.bambi.codec import encode_contribution
from parley.protocols.bambi.messages import Ask, LocalForward, LocalWork, Outcome, RowsForward
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Blobs
from parley.spec.protection import LabelPrivacySpec

Instruction = tuple[Outcome | None, Ask]


def training_loss(name: str, outputs: int, labels: LabelPrivacySpec) -> Loss:
    """The loss that fits the noisy labels of a run: how they are drawn is public."""
    clean = clean_loss(name, outputs)
    if isinstance(clean, Squared):
        return clean
    epsilon = None if labels.mechanism == "off" else labels.epsilon
    return choose_mechanism(labels.mechanism, max(2, outputs), epsilon, labels.kind).training_loss(clean)


class LocalRole:
    """Training by local rounds; predictions are those of every other mode."""

    def __init__(self, block: LocalBlock) -> None:
        self.block = block

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> LocalState:
        """Anew, or from a checkpoint."""
        fresh = local.begin(self.block.block)
        return fresh if checkpoint is None else _restored(fresh, checkpoint)

    def plan(self, state: LocalState, instruction: Instruction) -> Plan:
        """Make the local steps that came with the sum, then answer the ask."""
        outcome, ask = instruction
        if isinstance(outcome, LocalWork):
            state = local.apply(self.block, state, outcome)
        elif outcome is not None:
            raise OutcomeUnexpected(f"{type(outcome).__name__} is no outcome of a local round")
        if isinstance(ask, LocalForward | RowsForward):
            return Plan(*local.contribute(self.block, state, ask))
        if not isinstance(ask, Checkpoint | Finish):
            raise OutcomeUnexpected(f"{type(ask).__name__} is no ask of a local round")
        return Plan(state, checkpoint=ask.k if isinstance(ask, Checkpoint) else None, finished=isinstance(ask, Finish))

    def cost_class(self, instruction: Instruction) -> Hashable:
        """Local steps make a round long or short."""
        outcome, ask = instruction
        steps = outcome.steps if isinstance(outcome, LocalWork) else 0
        return type(ask).__name__, steps, ask.count if isinstance(ask, RowsForward) else None

    def encode(self, number: int, instruction: Instruction, release: Release[Addend] | None) -> tuple[Message, Blobs]:
        """The contribution to a round."""
        return encode_contribution(number, instruction[1], release)

    def tensors(self, state: LocalState) -> dict[str, Tensor]:
        """All that outlives a round."""
        found = {"k": scalar(state.k), "past": scalar(len(state.past))}
        for name, moments in zip(("x", "y"), state.moments, strict=True):
            found |= {f"moments.{name}.first": moments.first, f"moments.{name}.second": moments.second}
            found[f"moments.{name}.count"] = scalar(moments.count)
        for age, point in enumerate((state.point, *state.past)):
            found |= {f"points.{age}.x": point.x, f"points.{age}.y": point.y}
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def model_tensors(self, state: LocalState) -> dict[str, Tensor]:
        """The embedding and the classifier."""
        named = self.block.block.model.state_dict(state.point.x)
        return {f"embedding.{name}": tensor for name, tensor in named.items()} | {"y": state.point.y}


def _restored(fresh: LocalState, tensors: Mapping[str, Tensor]) -> LocalState:
    if "points.0.x" not in tensors or tensors["points.0.x"].shape != fresh.point.x.shape:
        raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
    points = [Point(tensors[f"points.{n}.x"], tensors[f"points.{n}.y"]) for n in range(int(tensors["past"]) + 1)]
    moments = [
        Moments(
            tensors[f"moments.{name}.first"], tensors[f"moments.{name}.second"], int(tensors[f"moments.{name}.count"])
        )
        for name in ("x", "y")
    ]
    return LocalState(points[0], (moments[0], moments[1]), tuple(points[1:]), int(tensors["k"]))
