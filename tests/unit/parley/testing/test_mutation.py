"""Wrong messages are well-formed, differ from the right one, and come again from the same seed."""

import random
from collections import deque

import numpy as np

from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.protocols.tensor.codec import encode_tensor
from parley.testing.mutation import damaged, mutated, random_message
from parley.testing.recordings import Framed


def right():
    message = bambi_pb2.Instruction(round=1, lower_forward=bambi_pb2.LowerForward(k=1, t=0))
    encode_tensor(np.ones((1, 2, 3)), deque(), into=message.gradient.theta)
    return message


def test_a_mutated_message_is_another_one_most_of_the_time():
    changed = [mutated(right(), random.Random(seed)) for seed in range(200)]
    assert sum(message != right() for message in changed) > 150
    assert all(bambi_pb2.Instruction.FromString(message.SerializeToString()) == message for message in changed)


def test_the_same_seed_makes_the_same_message():
    assert random_message(bambi_pb2.Instruction, random.Random(3)) == random_message(
        bambi_pb2.Instruction, random.Random(3)
    )
    assert damaged(b"0123456789", random.Random(3)) == damaged(b"0123456789", random.Random(3))


def test_chunks_that_follow_a_message_are_its_large_tensors_again():
    first = party_service_pb2.ExchangeRequest(following_bytes=[3, 5])
    chunks = [party_service_pb2.ExchangeRequest() for _ in range(2)]
    chunks[0].chunk.data, chunks[1].chunk.data = b"abcde", b"fgh"
    blobs = Framed("coordinator", "north", (first, *chunks)).blobs
    assert [bytes(blob) for blob in blobs] == [b"abc", b"defgh"]
