"""A curious neighbour: the product's own party, which also keeps every noised state that other parties send it.

The directory to write to is in the environment variable RECORDING.
"""

import os
from pathlib import Path

import numpy as np

import parley.party.ldp_dsbo.role as ldp_dsbo_role
from parley.protocols.ldp_dsbo.codec import decode_noised_state
from parley.services.party.__main__ import main
from parley.services.wire.process import run

_take = ldp_dsbo_role.LdpDsboRole._take


def _recording(self, sender, message, blobs):
    state, opened = decode_noised_state(message, blobs.copy()), self._begun.opened
    name = f"{opened.run_id}-{opened.name}-{sender}-{state.step:06d}.npy"
    np.save(Path(os.environ["RECORDING"]) / name, np.concatenate([state.noised_x, state.noised_y, state.noised_z]))
    _take(self, sender, message, blobs)


if __name__ == "__main__":
    ldp_dsbo_role.LdpDsboRole._take = _recording
    run(main, __doc__)
