"""Fuzzing without processes: every decoder and the spec parser, by the hundred thousand."""

import random

from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.testing.mutation import mutated, random_message
from tests.faults.cases import CASES, spec_of
from tests.faults.specs import mutated_spec
from tests.faults.tally import Tally
from tests.property.test_fuzz_decoders import DECODERS, announced_bytes


def input_campaign(messages: int, specs: int, seed: int) -> Tally:
    """Decode `messages` messages and parse `specs` specs: each is taken or refused by its named error."""
    tally, chance = Tally("decoder and spec fuzzing"), random.Random(seed)
    decoders = list(DECODERS.items())
    for number in range(messages):
        name, (kind, decode) = decoders[number % len(decoders)]
        message = random_message(kind, chance)
        message = mutated(message, chance) if number % 2 else message
        try:
            decode(message, announced_bytes(message, chance), chance)
            tally.count("messages taken")
        except MessageInvalid:
            tally.count("messages refused")
        except Exception as error:
            tally.fail(f"{name}, message {number} (seed {seed}): {type(error).__name__}: {error}")
    for number in range(specs):
        text = mutated_spec(spec_of(chance.choice(list(CASES))), chance)
        try:
            parse_spec(text)
            tally.count("specs taken")
        except SpecInvalid:
            tally.count("specs refused")
        except Exception as error:
            tally.fail(f"spec {number} (seed {seed}): {type(error).__name__}: {error}: {text[:300]!r}")
    return tally
