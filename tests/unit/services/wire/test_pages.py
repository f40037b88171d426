"""Lists in pages: nothing is lost, nothing comes twice, no page is large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.contracts.run.v1 import run_pb2
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.wire import pages
from parley.services.wire.transport import LARGEST_MESSAGE_BYTES


@given(st.lists(st.sampled_from(["", "a", "ü" * 20, "b" * 90, "c" * 150]), max_size=20))
def test_texts_come_back_in_order_from_small_pages(texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_BYTES", 100)
        found = list(pages.text_pages(texts))
    assert [text for page in found for text in page] == texts
    assert all(len(page) <= 1 or sum(len(text.encode()) for text in page) <= 100 for page in found)
    assert texts == [] or all(found)


def test_no_texts_are_one_page():
    assert list(pages.text_pages([])) == [[]]


def test_a_page_of_the_longest_texts_is_far_from_the_limit_of_a_message():
    largest = max(sum(len(text) for text in page) for page in pages.text_pages(["x" * 100_000] * 30))
    assert largest < LARGEST_MESSAGE_BYTES / 2


def walk(elements):
    token, found = "", []
    while True:
        page, token = pages.page_of(elements, token)
        found.append(list(page))
        if not token:
            return found


def test_pages_of_messages_hold_every_one_once():
    elements = [run_pb2.Metric(name="n" * 100_000, value=k) for k in range(25)]
    found = walk(elements)
    assert len(found) > 2
    assert [each.value for page in found for each in page] == list(range(25))


def test_an_element_larger_than_a_page_is_a_page_of_its_own():
    assert [len(page) for page in walk([run_pb2.Metric(name="n" * (2 << 20))] * 3)] == [1, 1, 1]


@pytest.mark.parametrize("token", ["nonsense", pages.page_token(-1), pages.page_token(4)])
def test_a_token_that_nobody_gave_is_refused(token):
    with pytest.raises(MessageInvalid, match="page_token"):
        pages.page_of([run_pb2.Metric()] * 3, token)
