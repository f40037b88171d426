"""A curious neighbour: the product's own party, which also keeps every noised state that other parties send it.

The directory to write to is in the environment variable RECORDING.
"""

import os
from pathlib import Path

import numpy as np

import parley.party.ldp_dsbo.role as ldp_dsbo_role
from parley.services.party.__main__ import main
from parley.services.wire.process import run

_take = ldp_dsbo_role.LdpDsboRole._take


def _recording(self, sender, message, blobs):
    state = ldp_dsbo_role.decode_noised_state(message, blobs.copy())
    own = self._place.spec.parties[self._place.index].name
    name = f"{self._place.run_id}-{own}-{sender}-{state.step:06d}.npy"
    np.save(Path(os.environ["RECORDING"]) / name, np.concatenate([state.noised_x, state.noised_y, state.noised_z]))
    _take(self, sender, message, blobs)


if __name__ == "__main__":
    ldp_dsbo_role.LdpDsboRole._take = _recording
    run(main, __doc__)
