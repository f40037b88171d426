"""A deviating party: the product's own service, which also asks for slopes of steps that it never makes.

What it was told goes to `asked.json` in the directory that the environment variable RECORDING names.
"""

import json
import os
from collections import deque
from pathlib import Path

from parley.party.peers import PeerLost
from parley.services.party.__main__ import main
from parley.services.party.coordinator_line import QuestionLine
from parley.services.wire.process import run

STEPS = (2**32 - 1, 2**32, 2**32 + 3, 2**33 + 5)
_ask = QuestionLine.ask


async def _asking(self, question, blobs):
    told = Path(os.environ["RECORDING"]) / "asked.json"
    if not told.exists() and question.WhichOneof("rows") == "batch":
        answers = []
        for step in STEPS:
            other = type(question)()
            other.CopyFrom(question)
            other.batch.t = step
            try:
                answer, _ = await _ask(self, other, deque(blobs))
                answers.append([step, "", str(answer)])
            except PeerLost as refused:
                answers.append([step, str(refused), ""])
        told.write_text(json.dumps(answers))
    return await _ask(self, question, blobs)


if __name__ == "__main__":
    QuestionLine.ask = _asking
    run(main, __doc__)
