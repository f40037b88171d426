"""The other parties, and the coordinator's answers, without a network: every message is bytes on its way."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from parley.coordinator.programs import AnsweringProgram, Program
from parley.party.peers import Take
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.simulation.crossing import from_bytes, to_bytes


class MemoryPeers:
    """What one party sends to, and takes from, the others of its process (`parley.party.peers.Peers`)."""

    def __init__(self, index: int, members: "Sequence[MemoryPeers]") -> None:
        """`members` are all parties, this one among them once it is made."""
        self._index, self._members = index, members
        self._takers: dict[str, Take] = {}
        self.sent_bytes = 0
        """Bytes of the messages that were sent, serialised."""

    def on(self, body: str, take: Take) -> None:
        """Let a role take messages of one kind; before that they are refused."""
        self._takers[body] = take

    async def push(self, receiver: int, blobs: Blobs, **body: Message) -> None:
        """Hand a message to the party with block `receiver`."""
        ((name, message),) = body.items()
        taker = self._members[receiver]._takers.get(name)
        if taker is None:
            raise MessageInvalid(f"party {receiver} takes no {name} from peers")
        sent = to_bytes(message, blobs)
        self.sent_bytes += len(sent[0]) + sum(len(blob) for blob in sent[1])
        taker(self._index, *from_bytes(type(message), sent))


def memory_peers(parties: int) -> list[MemoryPeers]:
    """Every party's peers."""
    members: list[MemoryPeers] = []
    members += [MemoryPeers(index, members) for index in range(parties)]
    return members


class MemoryLine:
    """A party's line to the coordinator (`parley.party.roles.CoordinatorLine`), for programs that answer questions."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.program: Program | None = None
        """Who answers; made after the parties have opened."""

    async def ask(self, question: Message, blobs: Blobs) -> tuple[Any, Blobs]:
        """The program's answer."""
        program = self.program
        if not isinstance(program, AnsweringProgram):
            raise MessageInvalid("the coordinator answers no questions in this run")
        answer, parts = program.answer(self._index, *from_bytes(type(question), to_bytes(question, blobs)))
        return from_bytes(type(answer), to_bytes(answer, parts))

    async def close(self) -> None:
        """Nothing is open."""
