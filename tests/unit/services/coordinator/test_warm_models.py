"""Which questions share a sum, and which wait for one."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from parley.coordinator.programs import Predictor
from parley.services.coordinator import warm_models
from parley.services.coordinator.deployment_records import DeploymentRecord
from parley.services.coordinator.warm_models import MOST_ROWS, WarmModel

RECORD = DeploymentRecord("served", 1, "run-1", "", current=True, deployed_by="ann", deployed="today")


@dataclass(frozen=True)
class Rows:
    """A round that releases no label."""

    label_release: None = None


@dataclass
class Parties:
    """A session whose sum for the row "7" is 7; `gate` holds a sum up until it is open."""

    sums: list[list[str]] = field(default_factory=list)
    asked_by: list[list[str]] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    under_way: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, _release: Any, served: Any, _features: Any) -> Any:
        self.began.append(time.perf_counter())
        self.sums.append(list(served.ids))
        self.asked_by.append([served.callers[place] for place in served.asked_by])
        self.under_way.set()
        await self.gate.wait()
        return np.array([float(name) for name in served.ids])

    async def busy(self) -> None:
        """Wait until the first sum is under way."""
        await asyncio.wait_for(self.under_way.wait(), 10)

    async def close(self) -> None: ...


@pytest.fixture
async def parties():
    return Parties()


@pytest.fixture
async def model(parties):
    predictor = Predictor(None, lambda _first, _count: Rows(), lambda total: total[:, None], [])
    found = WarmModel(None, None, None, predictor, RECORD, _session=parties)
    found.start()
    yield found
    await found.stop()


def asked(model: WarmModel, *names: str, caller: str = "ann") -> "asyncio.Task[Any]":
    return asyncio.create_task(model.ask(caller, names, {}))


async def values(questions: Sequence["asyncio.Task[Any]"]) -> list[list[float]]:
    async with asyncio.timeout(10):
        return [(await question)[:, 0].tolist() for question in questions]


async def test_questions_that_come_while_a_sum_is_under_way_share_the_next_one(model, parties):
    first = asked(model, "1")
    await parties.busy()
    later = [asked(model, "2", "3", caller="ben"), asked(model, "4", caller="cem"), asked(model, "5")]
    await asyncio.sleep(0)
    parties.gate.set()
    assert await values([first, *later]) == [[1.0], [2.0, 3.0], [4.0], [5.0]]
    assert parties.sums == [["1"], ["2", "3", "4", "5"]]
    assert parties.asked_by[1] == ["ben", "ben", "cem", "ann"]  # each party can count each caller's rows
    assert (model.sums, model.rows) == (2, 5)


async def test_questions_that_come_together_share_one_sum(model, parties):
    parties.gate.set()
    questions = [asked(model, str(number)) for number in range(20)]
    assert await values(questions) == [[float(number)] for number in range(20)]
    assert parties.sums == [[str(number) for number in range(20)]]


async def test_callers_who_ask_again_as_soon_as_they_are_answered_keep_sharing(model, parties, monkeypatch):
    monkeypatch.setattr(warm_models, "SHORTEST_GAP_SECONDS", 0.02)
    monkeypatch.setattr(warm_models, "LONGEST_GAP_SECONDS", 0.02)
    parties.gate.set()
    model._sum_seconds = 10.0  # they may be waited for

    async def call(number: int) -> None:
        for turn in range(3):
            await asyncio.sleep(0.002 * (number % 4))  # not all at the same moment
            assert (await model.ask("ann", [str(number)], {}))[0, 0] == number, turn

    await asyncio.gather(*map(call, range(8)))
    assert sum(map(len, parties.sums)) == 24
    assert len(parties.sums) <= 5  # 3 if the clock is kind; 24 without sharing


async def test_a_question_alone_never_waits_for_others(model, parties, monkeypatch):
    waits = []
    monkeypatch.setattr(warm_models, "SHORTEST_GAP_SECONDS", 3600.0)
    monkeypatch.setattr(warm_models, "LONGEST_GAP_SECONDS", 3600.0)
    parties.gate.set()
    for number in range(5):
        started = time.perf_counter()
        assert await values([asked(model, str(number))]) == [[float(number)]]
        waits.append(parties.began[-1] - started)
        model._sum_seconds = 3600.0  # however slow sums are
    assert len(parties.sums) == 5
    assert max(waits) < 5


async def test_nobody_is_waited_for_longer_than_a_sum_takes(model, parties, monkeypatch):
    monkeypatch.setattr(warm_models, "SHORTEST_GAP_SECONDS", 0.02)
    parties.gate.set()
    model._sum_seconds = 0.1
    questions = [asked(model, "1"), asked(model, "2")]
    while not parties.sums:  # somebody new comes into every gap, for ever
        questions.append(asked(model, "3"))
        await asyncio.sleep(0.01)
    assert len(parties.sums[0]) >= 2
    await values(questions)


async def test_a_sum_takes_no_more_rows_than_it_may(model, parties):
    first = asked(model, "1")
    await parties.busy()
    half = [str(number) for number in range(MOST_ROWS // 2 + 1)]
    questions = [asked(model, *half), asked(model, *half), asked(model, "9")]
    await asyncio.sleep(0)
    parties.gate.set()
    assert await values([first, *questions]) == [[1.0], *[[float(name) for name in half]] * 2, [9.0]]
    assert list(map(len, parties.sums)) == [1, len(half), len(half) + 1]


async def test_a_caller_who_has_gone_is_left_out_of_the_sum(model, parties):
    first = asked(model, "1")
    await parties.busy()
    gone, stays = asked(model, "2"), asked(model, "3")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    parties.gate.set()
    assert await values([first, stays]) == [[1.0], [3.0]]
    assert parties.sums == [["1"], ["3"]]


async def test_a_model_that_is_retired_answers_what_waits_without_letting_others_in(model, parties, monkeypatch):
    monkeypatch.setattr(warm_models, "SHORTEST_GAP_SECONDS", 3600.0)
    monkeypatch.setattr(warm_models, "LONGEST_GAP_SECONDS", 3600.0)
    first = asked(model, "1")
    await parties.busy()
    later = [asked(model, "2"), asked(model, "3")]
    await asyncio.sleep(0)
    retired = asyncio.create_task(model.retire())
    await asyncio.sleep(0)
    parties.gate.set()
    assert await values([first, *later]) == [[1.0], [2.0], [3.0]]
    await retired
    assert parties.sums == [["1"], ["2", "3"]]
