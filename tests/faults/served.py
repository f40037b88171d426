"""Every method that is served, found in the generated contracts and the services' own policies, and messages for it."""

import importlib
import pkgutil
import random
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from parley import contracts
from parley.contracts.aggregation.v1 import aggregation_pb2
from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.peer.v1 import peer_service_pb2 as peer_pb
from parley.contracts.run.v1 import run_service_pb2 as run_pb
from parley.contracts.tensor.v1 import tensor_pb2
from parley.protocols.protocol import protocol_of
from parley.services.coordinator.__main__ import POLICY as COORDINATOR_POLICY
from parley.services.party.__main__ import POLICY as PARTY_POLICY
from parley.spec.algorithms import algorithm_named
from parley.testing.mutation import random_message

CALLERS = {"coordinator": "coordinator", "party": "shop", "client": "client"}
"""Who calls in a role."""


@dataclass(frozen=True)
class Served:
    """A method at a process that serves it."""

    process: str
    caller: str
    path: str
    descriptor: Any

    @property
    def name(self) -> str:
        """The method."""
        return str(self.descriptor.name)


def served_methods() -> list[Served]:
    """Every method of every service of the contracts, at a party and at the coordinator.

    A method that no policy names is served nowhere; then nobody may call it, and that is what is tested.
    """
    found = []
    for module in pkgutil.walk_packages(contracts.__path__, "parley.contracts."):
        if not module.name.endswith("_pb2"):
            continue
        for service in importlib.import_module(module.name).DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                for process, policy in (("bank", PARTY_POLICY), ("coordinator", COORDINATOR_POLICY)):
                    roles = sorted(policy.methods.get(path, ()))
                    found += [Served(process, CALLERS[role], path, method) for role in roles]
    return found


@dataclass
class Known:
    """What a message may name: a session, its opening, and a run that has ended."""

    opening: party_pb.OpenSessionRequest
    beginning: party_pb.BeginSessionRequest
    algorithm: str
    run_id: str


def right_messages(method: Served, known: Known, chance: random.Random) -> list[Message]:
    """A message (or a stream) that the method would take, or nearly."""
    session = known.opening.session_id
    match method.name:
        case "OpenSession":
            request = party_pb.OpenSessionRequest()
            request.CopyFrom(known.opening)
            request.run_id = "fuzzed-too"
            request.session_id = session if chance.random() < 0.2 else "fuzz-other"
            return [request]
        case "BeginSession":
            return [known.beginning]
        case "CloseSession":
            return [party_pb.CloseSessionRequest(session_id="fuzz-other")]
        case "Exchange":
            return [attach(session), *instructions(known.algorithm, chance)]
        case "Push":
            return [peer_pb.PushRequest(attach=peer_pb.Attach(session_id=session)), _pushed(chance)]
        case "StartRun":
            return [run_pb.StartRunRequest(request_id=f"r-{chance.getrandbits(60)}", spec_yaml="name: x")]
        case "DeleteRun":  # the run that other messages name stays
            return [run_pb.DeleteRunRequest(run_id="fuzz-unknown")]
        case "AskSlopes":
            question = coordinator_service_pb2.SlopesQuestion(session_id=session, opened_theta=_tensor(8))
            return [coordinator_service_pb2.AskSlopesRequest(question=question)]
    message = method.descriptor.input_type._concrete_class()
    fields = message.DESCRIPTOR.fields_by_name
    if fields and "run_id" not in fields:
        message = random_message(type(message), chance)
    for name, value in (("run_id", known.run_id), ("session_id", session)):
        if name in fields:
            setattr(message, name, value)
    return [message]


def attach(session_id: str) -> party_pb.ExchangeRequest:
    """The first message of a stream."""
    return party_pb.ExchangeRequest(attach=party_pb.Attach(session_id=session_id))


def lower_forward(number: int) -> party_pb.ExchangeRequest:
    """An instruction of BAMBI that any party answers as round `number`."""
    forward = bambi_pb2.LowerForward(k=1, t=0)
    return party_pb.ExchangeRequest(bambi=bambi_pb2.Instruction(round=number, lower_forward=forward))


def instructions(algorithm: str, chance: random.Random) -> list[Message]:
    """One to three instructions of an algorithm, numbered."""
    protocol = protocol_of(algorithm_named(algorithm))
    asks: list[dict[str, Any]] = [
        {"lower_forward": bambi_pb2.LowerForward(k=1, t=0)},
        {"upper_forward": bambi_pb2.UpperForward(k=1)},
        {"rows_forward": bambi_pb2.RowsForward(rows=3, first=0, count=5)},  # type: ignore[arg-type]
        {"checkpoint": bambi_pb2.Checkpoint(k=1)},
    ]
    messages: list[Message] = []
    for number in range(chance.choice((1, 1, 2, 3))):
        if algorithm == "bambi":
            instruction: Any = bambi_pb2.Instruction(**chance.choice(asks))
        else:
            instruction = random_message(protocol.instruction, chance)
        instruction.round = number + 1
        envelope: dict[str, Any] = {protocol.body: instruction}
        messages.append(party_pb.ExchangeRequest(**envelope))
    return messages


def _pushed(chance: random.Random) -> peer_pb.PushRequest:
    if chance.random() < 0.5:
        return random_message(peer_pb.PushRequest, chance)
    part = aggregation_pb2.MaskedTheta(tree=1, round=1, elements=_tensor(64), participants=2)  # type: ignore[arg-type]
    return peer_pb.PushRequest(masked_theta=part)


def _tensor(size: int) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(element_type=4, shape=[size], data=bytes(8 * size))  # type: ignore[arg-type]
