"""A curious party: the product's own service, which also keeps every gradient that the coordinator sends it.

The directory to write to is in the environment variable RECORDING.
"""

import os
from pathlib import Path

import numpy as np

import parley.party.bambi.role as bambi_role
from parley.protocols.bambi.messages import Gradient
from parley.services.party.__main__ import main
from parley.services.wire.process import run

_decode = bambi_role.decode_instruction


def _recording(message, blobs):
    outcome, ask = _decode(message, blobs)
    if isinstance(outcome, Gradient) and outcome.theta is not None:
        np.save(Path(os.environ["RECORDING"]) / f"{message.round:06d}.npy", outcome.theta)
    return outcome, ask


if __name__ == "__main__":
    bambi_role.decode_instruction = _recording
    run(main, __doc__)
