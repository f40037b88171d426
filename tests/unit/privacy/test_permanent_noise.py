import numpy as np
import pytest

from parley.privacy.noise import KeyedNoise
from parley.privacy.permanent_noise import PermanentNoise, class_tags, number_tags, tag_records

NOISE = KeyedNoise(bytes(range(32)))
CLASSES = ("no", "perhaps", "yes")
IDS = [f"person-{number}" for number in range(50)]
VALUES = np.random.default_rng(0).integers(0, 3, 50)


def tagged(ids=IDS, values=VALUES, classes=CLASSES, dataset="train", noise=NOISE):
    return tag_records(noise, dataset, ids, class_tags(classes, np.asarray(values)))


def words(tags, purpose="p", count=3, run="run", release=0, context=""):
    return PermanentNoise(NOISE, tags, context).words(purpose, run, release, np.arange(len(tags)), count)


def test_neither_the_run_nor_the_release_changes_the_noise():
    assert words(tagged()).tobytes() == words(tagged(), run="another", release=7).tobytes()


@pytest.mark.parametrize(
    "chosen",
    [np.arange(50)[::-1], np.arange(10, 30), np.array([7])],
    ids=["another order", "some rows", "one row"],
)
def test_a_record_keeps_its_noise_wherever_it_stands(chosen):
    part = tagged([IDS[row] for row in chosen], VALUES[chosen])
    np.testing.assert_array_equal(words(part), words(tagged())[chosen])


def test_rows_and_classes_that_are_added_leave_the_tags_of_the_others_alone():
    longer = tagged(["a new one", *IDS], [0, *VALUES], CLASSES)
    np.testing.assert_array_equal(words(longer)[1:], words(tagged()))
    more = tagged(classes=("maybe", *CLASSES), values=VALUES + 1)  # every class has another number now
    np.testing.assert_array_equal(more.records, tagged().records)


def test_a_changed_label_is_another_record_of_the_same_identity():
    changed = VALUES.copy()
    changed[4] = (changed[4] + 1) % 3
    before, after = tagged(), tagged(values=changed)
    np.testing.assert_array_equal(before.identities, after.identities)
    assert np.flatnonzero((before.records != after.records).any(axis=1)).tolist() == [4]
    assert (words(before)[4] != words(after)[4]).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"purpose": "label/a"}, {"purpose": "label/b"}),
        ({"context": "no\0yes"}, {"context": "yes\0no"}),
        ({}, {"tags": tagged(dataset="spring")}),
        ({}, {"tags": tagged(noise=KeyedNoise(b"k" * 32))}),
    ],
    ids=["mechanism", "classes", "data set", "key"],
)
def test_what_must_be_drawn_apart_is(one, other):
    first = words(one.pop("tags", tagged()), **one)
    second = words(other.pop("tags", tagged()), **other)
    assert (first != second).all()


def test_words_look_uniform_and_no_two_records_share_them():
    tags = tag_records(NOISE, "t", [str(i) for i in range(20000)], class_tags(("a",), np.zeros(20000, np.int64)))
    drawn = words(tags, count=5)
    assert drawn.shape == (20000, 5)
    assert len(np.unique(drawn)) == drawn.size
    bits = np.unpackbits(np.ascontiguousarray(drawn).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(bits.size)  # passed by chance once in 30 000 times


def test_an_id_draws_the_same_noise_as_an_alignment_spells_it():
    np.testing.assert_array_equal(
        tagged(["17", "é", "x"], [0, 1, 2]).records, tagged([" 17.0", "e\u0301", "x "], [0, 1, 2]).records
    )
    apart = tagged(["17", "17.0", "x"], [0, 0, 2])  # two rows of one table: they stay two
    assert len(np.unique(apart.identities, axis=0)) == 3


def test_real_values_are_told_apart_to_the_last_bit():
    values = np.array([0.1, np.nextafter(0.1, 1), -0.0, 0.0])
    tags = number_tags(values)
    assert len({bytes(tag) for tag in tags}) == 3
    rows = number_tags(np.arange(6.0).reshape(2, 3))
    assert len({bytes(tag) for tag in rows}) == 2


def test_tags_say_nothing_without_the_key():
    one, other = tagged(), tagged(noise=KeyedNoise(b"k" * 32))
    assert (one.identities != other.identities).any(axis=1).all()
    assert (one.records != other.records).any(axis=1).all()
    assert "person" not in repr(one)
