"""A curious party: the product's own service, which also keeps every gradient that the coordinator sends it.

The directory to write to is in the environment variable RECORDING.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

import parley.party.bambi.role as bambi_role
from parley.protocols.bambi.codec import PROTOCOL, decode_instruction
from parley.protocols.bambi.messages import Gradient
from parley.services.party.__main__ import main
from parley.services.wire.process import run


def _recording(message, blobs):
    outcome, ask = decode_instruction(message, blobs)
    if isinstance(outcome, Gradient) and outcome.theta is not None:
        np.save(Path(os.environ["RECORDING"]) / f"{message.round:06d}.npy", outcome.theta)
    return outcome, ask


if __name__ == "__main__":
    recording = replace(PROTOCOL, decode_instruction=_recording)
    bambi_role.ALGORITHM = replace(bambi_role.ALGORITHM, protocol=recording)
    run(main, __doc__)
