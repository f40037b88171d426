"""Ids that are written at once are those that Python writes one after the other."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tables.texts import from_arrow, in_order, terminated, with_lengths

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
PLAIN = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=6)
LISTS = st.lists(PLAIN, max_size=9) | st.lists(WORDS, max_size=9)


@given(LISTS)
def test_texts_are_written_as_one_by_one(texts):
    array = np.array(texts, dtype="<U6")
    encoded = [text.encode() for text in texts]
    assert terminated(array) == b"".join(text + b"\0" for text in encoded)
    prefixed = b"".join(len(text).to_bytes(4, "big") + text for text in encoded)
    assert with_lengths(array) == with_lengths(texts) == prefixed


@given(LISTS)
def test_texts_are_sorted_as_python_sorts_them(texts):
    assert in_order(np.array(texts, dtype="<U6")).tolist() == sorted(texts)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@given(texts=LISTS)
def test_texts_come_from_arrow_as_they_are(kind, texts):
    assert from_arrow(pa.array(["before", *texts], kind).slice(1), 6).tolist() == texts
