"""A curious neighbour: the product's own party, which also keeps every noised state that other parties send it.

The directory to write to is in the environment variable RECORDING.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

import parley.party.ldp_dsbo.role as ldp_dsbo_role
from parley.protocols.ldp_dsbo.codec import decode_noised_state
from parley.services.party.__main__ import main
from parley.services.wire.process import run


class Recording:
    """The other parties, and a note of all that they send."""

    def __init__(self, peers, opened):
        self._peers, self._name = peers, f"{opened.run_id}-{opened.name}"

    @property
    def sent_bytes(self):
        return self._peers.sent_bytes

    async def push(self, receiver, blobs, **body):
        await self._peers.push(receiver, blobs, **body)

    def on(self, body, take):
        def noted(sender, message, blobs):
            state = decode_noised_state(message, blobs.copy())
            path = Path(os.environ["RECORDING"]) / f"{self._name}-{sender}-{state.step:06d}.npy"
            np.save(path, np.concatenate([state.noised_x, state.noised_y, state.noised_z]))
            take(sender, message, blobs)

        self._peers.on(body, noted)


def recording_role(begun):
    return ldp_dsbo_role.role(replace(begun, peers=Recording(begun.peers, begun.opened)))


if __name__ == "__main__":
    ldp_dsbo_role.ALGORITHM = replace(ldp_dsbo_role.ALGORITHM, role=recording_role)
    run(main, __doc__)
