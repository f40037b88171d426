"""What AsySQN's messages weigh, and what the codec refuses."""

from collections import deque

import numpy as np
import pytest

from parley.contracts.asysqn.v1 import asysqn_pb2
from parley.contracts.peer.v1 import peer_service_pb2
from parley.privacy.release import OutcomeGate
from parley.privacy.requested_sums import RequestedTreeSums
from parley.protocols.asysqn.codec import (
    decode_contribution,
    decode_instruction,
    decode_partial,
    decode_request,
    encode_instruction,
    encode_partial,
    encode_request,
)
from parley.protocols.asysqn.messages import (
    AllRows,
    AsysqnRound,
    Batch,
    Evaluate,
    OpenedTheta,
    Progress,
    ThetaForward,
    ThetaRequest,
)
from parley.protocols.rounds import Checkpoint
from parley.protocols.tensor.codec import MessageInvalid
from parley.simulation.sums import pair_secrets
from parley.spec.protection import AggregationSpec

PARTIES, BATCH = 8, 1024
GATE = OutcomeGate(lambda _: True)


def climbed_sum(requester, shares, number=1):
    """Carry one sum up the requester's trees as messages; return the opened sum and every message's bytes."""
    settings = AggregationSpec(kind="two_tree")
    shared = pair_secrets(PARTIES)
    nodes = [RequestedTreeSums(m, PARTIES, settings, lambda r, m=m: shared[m](f"{r}")) for m in range(PARTIES)]
    request = peer_service_pb2.PushRequest(theta_request=encode_request(ThetaRequest(number, Batch(17, 12345))))
    sizes = [request.ByteSize()] * (PARTIES - 1)
    for party, node in enumerate(nodes):
        node.gates[requester].begin(number, shares[party])

    def up(party, tree):
        gate = nodes[party].gates[requester]
        received = [(child, up(child, tree)) for child in gate.children(number, tree)]
        release = gate.forward(number, tree, received)
        if gate.parent(tree) is None and party == requester:
            return release.content
        blobs = deque()
        message = peer_service_pb2.PushRequest(partial_theta=encode_partial(requester, release, blobs))
        assert not blobs
        sizes.append(message.ByteSize())
        return decode_partial(message.partial_theta, deque())[2]

    roots = {"values": requester, "masks": nodes[0].mask_roots[requester]}
    parts = {tree: up(root, tree) for tree, root in roots.items()}
    return nodes[requester].open(parts["values"], parts["masks"]).values, sizes


@pytest.mark.parametrize("requester", [0, 3, 7])
def test_a_sum_at_eight_parties_costs_at_most_a_tenth_more_than_its_numbers(requester):
    shares = np.random.default_rng(requester).normal(size=(PARTIES, BATCH))
    total, sizes = climbed_sum(requester, shares)
    np.testing.assert_allclose(total, shares.sum(axis=0), rtol=0, atol=PARTIES * 2.0**-41)
    assert len(sizes) == 7 + 15
    assert sum(sizes) <= 1.10 * (120 * BATCH + 112)


@pytest.mark.parametrize(
    "ask", [ThetaForward(Batch(3, 9)), ThetaForward(AllRows()), Evaluate(), Evaluate("all", 5, 7), Checkpoint(4)]
)
def test_an_instruction_comes_back_as_it_was_sent(ask):
    release = GATE.release(AsysqnRound(OpenedTheta(np.array([1.5, -2.0])), ask))
    message, blobs = encode_instruction(6, release)
    outcome, decoded = decode_instruction(asysqn_pb2.Instruction.FromString(message.SerializeToString()), blobs)
    assert decoded == ask
    np.testing.assert_array_equal(outcome.values, [1.5, -2.0])


@pytest.mark.parametrize(
    "message",
    [
        asysqn_pb2.Instruction(round=1),
        asysqn_pb2.Instruction(round=1, theta_forward=asysqn_pb2.ThetaForward()),
        asysqn_pb2.Instruction(round=1, look=asysqn_pb2.Look()),
        asysqn_pb2.Instruction(round=1, checkpoint=asysqn_pb2.Checkpoint(k=2**50)),
    ],
)
def test_an_instruction_that_says_too_little_or_too_much_is_refused(message):
    with pytest.raises(MessageInvalid):
        decode_instruction(message, deque())


def test_a_request_without_rows_and_a_part_without_content_are_refused():
    with pytest.raises(MessageInvalid, match="rows"):
        decode_request(asysqn_pb2.ThetaRequest(round=1))
    with pytest.raises(MessageInvalid, match="part"):
        decode_partial(asysqn_pb2.PartialTheta(requester=1), deque())


def test_a_look_cannot_be_answered_with_an_acknowledgement_nor_time_run_backwards():
    empty = asysqn_pb2.Contribution(round=1, acknowledgement=asysqn_pb2.Acknowledgement())
    with pytest.raises(MessageInvalid, match="Evaluate"):
        decode_contribution(empty, deque(), Evaluate())
    empty.progress.busy_seconds = -1.0
    with pytest.raises(MessageInvalid, match="durations"):
        decode_contribution(empty, deque(), Checkpoint(1))
    empty.progress.busy_seconds = 1.0
    assert decode_contribution(empty, deque(), Checkpoint(1)) == (None, Progress(0, busy_seconds=1.0))
