"""Every decoder takes any message of its type, or refuses it as MESSAGE_INVALID; nothing else ever comes out."""
# ruff: noqa: PT017 (an input may also be right, and then nothing is raised)

import asyncio
import importlib
import pkgutil
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from parley import protocols
from parley.contracts.aggregation.v1 import aggregation_pb2
from parley.contracts.asysqn.v1 import asysqn_pb2
from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.decentralised.v1 import decentralised_pb2
from parley.contracts.explore.v1 import explore_pb2
from parley.contracts.fedbio.v1 import fedbio_pb2
from parley.contracts.glm.v1 import glm_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.run.v1 import run_pb2, run_service_pb2
from parley.contracts.tensor.v1 import tensor_pb2
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares
from parley.protocols.aggregation import codec as sum_codec
from parley.protocols.asysqn import codec as asysqn_codec
from parley.protocols.asysqn import messages as asysqn_rounds
from parley.protocols.bambi import codec as bambi_codec
from parley.protocols.bambi import messages as rounds
from parley.protocols.decentralised import codec as decentralised_codec
from parley.protocols.decentralised import messages as decentralised_rounds
from parley.protocols.explore import codec as explore_codec
from parley.protocols.fedbio import codec as fedbio_codec
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.glm import codec as glm_codec
from parley.protocols.hgp import codec as hgp_codec
from parley.protocols.ldp_dsbo import codec as ldp_dsbo_codec
from parley.protocols.recovery import codec as recovery_codec
from parley.protocols.rounds import Finish
from parley.protocols.tensor.codec import LARGEST_TENSOR_BYTES, MessageInvalid, decode_tensor
from parley.services import wire
from parley.services.wire import alignment_codec, event_codec, receipt_codec
from parley.services.wire.framing import receive
from parley.services.wire.pages import decode_page_token
from parley.testing.mutation import damaged, mutated, random_message
from tests.property.examples import FUZZ_EXAMPLES

EXAMPLES = settings(max_examples=FUZZ_EXAMPLES, deadline=None)
seeds = st.integers(0, 2**63)
ASKS = [
    rounds.LowerForward(1, 0),
    rounds.DirectionalForward(1),
    rounds.CurvatureForward(1, "newton", 0),
    Finish(),
]
STEPS = [AskKey(), AskShares(1, {}), AskDisclosure(1, frozenset({0, 1}))]
DECODERS: dict[str, tuple[Any, Any]] = {
    "tensor": (tensor_pb2.Tensor, lambda m, b, _: decode_tensor(m, b, name="x")),
    "any tensor": (tensor_pb2.Tensor, lambda m, b, _: decode_tensor(m, b, name="x", kinds="fiu")),
    "addend": (aggregation_pb2.Addend, lambda m, b, _: sum_codec.decode_addend(m, b)),
    "partial sum": (aggregation_pb2.MaskedTheta, lambda m, b, _: sum_codec.decode_tree_sum(m, b)),
    "bambi instruction": (bambi_pb2.Instruction, lambda m, b, _: bambi_codec.decode_instruction(m, b)),
    "bambi contribution": (
        bambi_pb2.Contribution,
        lambda m, b, chance: bambi_codec.decode_contribution(m, b, chance.choice(ASKS)),
    ),
    "fedbio instruction": (fedbio_pb2.Instruction, lambda m, b, _: fedbio_codec.decode_instruction(m, b)),
    "fedbio contribution": (
        fedbio_pb2.Contribution,
        lambda m, b, chance: fedbio_codec.decode_contribution(
            m, b, AveragingRound(chance.choice(("variables", "momenta", "evaluate", "checkpoint")), 1, (0, 1))
        ),
    ),
    "recovery answer": (
        fedbio_pb2.Contribution,
        lambda m, _b, chance: fedbio_codec.decode_step_answer(m, chance.choice(STEPS), 1),
    ),
    "round key": (aggregation_pb2.RoundKey, lambda m, _b, _: recovery_codec.decode_offer(m)),
    "alignment": (run_service_pb2.AlignRequest, lambda m, _b, _: alignment_codec.decode_duplicates(m.duplicates)),
    "recovery step": (aggregation_pb2.RecoveryStep, lambda m, _b, _: recovery_codec.decode_step(m)),
    "sealed shares": (aggregation_pb2.ShareBundle, lambda m, _b, _: recovery_codec.decode_bundle(m)),
    "disclosure": (aggregation_pb2.Disclosure, lambda m, _b, _: recovery_codec.decode_settlement(m, 1)),
    "settled sum": (fedbio_pb2.SettledSum, lambda m, _b, _: list(fedbio_codec.decode_settled([m]))),
    "decentralised instruction": (
        decentralised_pb2.Instruction,
        lambda m, b, _: decentralised_codec.decode_instruction(m, b),
    ),
    "decentralised contribution": (
        decentralised_pb2.Contribution,
        lambda m, b, _: decentralised_codec.decode_contribution(m, b, decentralised_rounds.StepRange("evaluate", 0)),
    ),
    "push-sum vector": (decentralised_pb2.PushSumVector, lambda m, b, _: hgp_codec.decode_push_sum(m, b)),
    "noised state": (decentralised_pb2.NoisedState, lambda m, b, _: ldp_dsbo_codec.decode_noised_state(m, b)),
    "asysqn instruction": (asysqn_pb2.Instruction, lambda m, b, _: asysqn_codec.decode_instruction(m, b)),
    "asysqn contribution": (
        asysqn_pb2.Contribution,
        lambda m, b, _: asysqn_codec.decode_contribution(m, b, asysqn_rounds.Report()),
    ),
    "asysqn request": (asysqn_pb2.ThetaRequest, lambda m, _b, _: asysqn_codec.decode_request(m)),
    "asysqn part": (asysqn_pb2.PartialTheta, lambda m, b, _: asysqn_codec.decode_partial(m, b)),
    "asysqn slopes": (asysqn_pb2.Slopes, lambda m, b, _: asysqn_codec.decode_slopes(m, b)),
    "asysqn question": (
        coordinator_service_pb2.SlopesQuestion,
        lambda m, b, _: asysqn_codec.decode_question(m, b),
    ),
    "glm instruction": (glm_pb2.Instruction, lambda m, b, _: glm_codec.decode_instruction(m, b)),
    "explore instruction": (explore_pb2.Instruction, lambda m, b, _: explore_codec.decode_instruction(m, b)),
    "masked columns": (explore_pb2.MaskedColumns, lambda m, b, _: explore_codec.decode_masked_columns(m, b)),
    "page token": (run_service_pb2.GetLedgerRequest, lambda m, _b, _: decode_page_token(m.page_token)),
    "metrics": (run_pb2.Metric, lambda m, _b, _: event_codec.decode_metrics([m])),
    "receipt": (aggregation_pb2.Receipt, lambda m, _b, _: receipt_codec.decode_receipt(m)),
}


def test_every_decoder_of_the_wire_is_fuzzed():
    here = Path(__file__).read_text()
    modules = [module.name for module in pkgutil.iter_modules(wire.__path__, "parley.services.wire.")]
    modules += [module.name for module in pkgutil.walk_packages(protocols.__path__, "parley.protocols.")]
    for module in modules:
        for name in vars(importlib.import_module(module)):
            if name.startswith("decode_"):
                assert f"{name}(m" in here or f"{name}([m" in here or f"{name}(\n" in here, f"{module}.{name}"


def announced_bytes(message, chance):
    """What might have followed a message: nothing, or blobs of some sizes."""
    return deque(memoryview(bytes(chance.choice((0, 4, 8, 80, 256)))) for _ in range(chance.randrange(3)))


@pytest.mark.parametrize("name", DECODERS)
@given(seed=seeds)
@EXAMPLES
def test_a_decoder_decodes_or_refuses_by_name(name, seed):
    chance = random.Random(seed)
    kind, decode = DECODERS[name]
    message = random_message(kind, chance)
    for candidate in (message, mutated(message, chance)):
        try:
            decode(candidate, announced_bytes(candidate, chance), chance)
        except MessageInvalid as refused:
            assert str(refused)


@pytest.mark.parametrize("name", DECODERS)
@given(seed=seeds)
@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
def test_damaged_bytes_are_no_message_or_one_that_decodes_or_is_refused(name, seed):
    chance = random.Random(seed)
    kind, decode = DECODERS[name]
    data = damaged(random_message(kind, chance).SerializeToString(), chance)
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    try:
        decode(message, announced_bytes(message, chance), chance)
    except MessageInvalid as refused:
        assert str(refused)


@given(seed=seeds)
@EXAMPLES
def test_a_stream_of_chunks_gives_what_was_announced_or_is_refused(seed):
    chance = random.Random(seed)
    first = random_message(party_service_pb2.ExchangeRequest, chance)
    taken = 0

    async def following():
        nonlocal taken
        if chance.random() < 0.1:
            return random_message(party_service_pb2.ExchangeRequest, chance)
        chunk = tensor_pb2.Chunk(data=bytes(chance.choice((0, 1, 8, 1 << 10, 1 << 20))))
        taken += len(chunk.data)
        if taken > 1 << 24:  # an endless sender; the rest would be more of the same
            raise MessageInvalid("the stream ended in the middle of a tensor")
        return party_service_pb2.ExchangeRequest(chunk=chunk)

    try:
        blobs = asyncio.run(receive(first, following))
    except MessageInvalid as refused:
        assert str(refused)
    else:
        assert sum(len(blob) for blob in blobs) == taken <= LARGEST_TENSOR_BYTES
