"""The clock of a decentralised run: how ranges of steps look on the wire, and how much the parties send each other."""

from typing import Any

from google.protobuf.message import Message

from parley.coordinator.programs import LabelFreeProgram
from parley.numerics.networks import NetworkPlan, links, out_neighbours
from parley.privacy.release import Addend, Release
from parley.protocols.decentralised.codec import decode_contribution, encode_instruction
from parley.protocols.decentralised.messages import PeerTraffic, StepRange
from parley.protocols.tensor.codec import Blobs, MessageInvalid

LOOKED_AT = 1000
"""Steps of a network that changes by which its links are counted."""


def links_per_step(plan: NetworkPlan, steps: int) -> float:
    """Over how many links something is sent in a step, on average over the first steps."""
    looked = range(max(1, min(steps, LOOKED_AT)))
    return sum(len(out_neighbours(links(plan, step), member)) for step in looked for member in range(plan.size)) / len(
        looked
    )


class Clock(LabelFreeProgram):
    """Sends ranges of steps; no vector passes through it."""

    def __init__(self, parties: int) -> None:
        self.finish = StepRange("finish", 0)
        self._traffic: dict[int, PeerTraffic] = {}
        self._parties = parties

    def encode(self, number: int, release: Release[StepRange]) -> tuple[Message, Blobs]:
        """The instruction for a range of steps."""
        return encode_instruction(number, release)

    def decode(self, message: Any, blobs: Blobs, release: Release[StepRange]) -> Addend | None:
        """A party's answer; how much it sent to its neighbours is noted."""
        addend, traffic = decode_contribution(message, blobs, release.content)
        if traffic.party >= self._parties:
            raise MessageInvalid(f"there is no party {traffic.party} in this run")
        self._traffic[traffic.party] = traffic
        return addend

    def traffic(self) -> dict[str, float]:
        """Messages and bytes between the parties, in this session."""
        return {
            "peer messages": float(sum(traffic.messages for traffic in self._traffic.values())),
            "peer bytes": float(sum(traffic.payload_bytes for traffic in self._traffic.values())),
        }
