"""Private set intersection: everybody learns the intersection, and a dictionary without the keys learns nothing."""

import hashlib
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from parley.privacy import psi_curve, psi_lanes
from parley.privacy.psi import Holder, HolderKeys, Leader, LeaderKeys, PsiError, permutation, shares_of
from parley.privacy.psi_curve import (
    POINT_BYTES,
    PointRefused,
    fresh_blinding,
    fresh_scalar,
    hashed,
    power,
)
from parley.privacy.psi_files import KEPT_SECONDS, Unfinished, forget_old
from parley.privacy.psi_table import Keys, build, look_up, slots_for, words_of
from parley.privacy.psi_workers import Workers
from parley.tables.id_lists import IdList

P, A = 2**255 - 19, 486662
WORKERS = Workers(processes=1)


def points_of(data):
    return [data[start : start + POINT_BYTES] for start in range(0, len(data), POINT_BYTES)]


def on_curve(point):
    u = int.from_bytes(point, "little")
    return pow(u * (u * u + A * u + 1), (P - 1) // 2, P) in (0, 1)


def table_of(words, values):
    """A table with these values."""
    keys = Keys(len(words))
    keys.put(0, words, values)
    return build(keys)


def holding(directory, ids, index=0, pair_keys=None, context=b"c" * 16, keys=None):
    """A holder that keeps its files in a directory of its own."""
    kept = Unfinished(directory / f"holder-{index}")
    kept.directory.mkdir(exist_ok=True, parents=True)
    return Holder(IdList.of(ids), index, pair_keys or {}, context, keys or HolderKeys.fresh(), kept)


def everyone(directory, sets, leading):
    """All roles up to the point where holders give up their shares of the shuffle."""
    context = secrets.token_bytes(16)
    keys = {frozenset((i, j)): secrets.token_bytes(32) for i in range(len(sets)) for j in range(i)}
    holders = [
        holding(directory, ids, i, {j: keys[frozenset((i, j))] for j in range(len(sets)) if j != i}, context)
        for i, ids in enumerate(sets)
    ]
    kept = Unfinished(directory / "leader")
    kept.directory.mkdir()
    leader = Leader(IdList.of(leading), context, LeaderKeys.fresh(), kept)
    sealed = [holder.sealed_shares().data for holder in holders]
    for index, holder in enumerate(holders):
        holder.open_shares([shares[index] for shares in sealed])
    blinded = leader.blinded(WORKERS, 0, len(leader))
    sums = []
    for index, (holder, ids) in enumerate(zip(holders, sets, strict=True)):
        holder.make_table(WORKERS)
        holder.take(holder.power(blinded.data, WORKERS))
        for points in holder.shuffled():
            leader.evaluated(index).append(leader.unblinded(points.data, WORKERS))
        for part in holder.table():
            leader.slots(index).append(part.slots)
        sums.append(leader.sums(index, part.salt, len(ids)))
    return leader, holders, sums


def told(leader, index):
    """The tags that one holder gets."""
    return b"".join(part.data for part in leader.matches(index))


@pytest.mark.parametrize("holders", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_everyone_learns_the_intersection_of_all_sets(tmp_path, holders, size):
    generator = random.Random(100 * holders + size)
    universe = [f"person {number}" for number in range(size + 4)]
    sets = [generator.sample(universe, size) for _ in range(holders)]
    leading = generator.sample(universe, size + 2)
    leader, parties, sums = everyone(tmp_path, sets, leading)
    expected = set(leading).intersection(*sets)
    assert leader.match(sums) == len(expected)
    for index, party in enumerate(parties):
        assert set(party.common(told(leader, index))) == expected
    assert set(leader.common([party.share().data for party in parties])) == expected


def test_ids_that_only_some_have_leave_no_trace_in_the_sums(tmp_path):
    """An id that all but one holder have, and one that nobody has: the leader sees a random sum for both."""
    sets = [["all", "two", "a"], ["all", "two", "b"], ["all", "c", "d"]]
    _, _, sums = everyone(tmp_path, sets, ["all", "two", "nobody"])
    total = np.bitwise_xor.reduce(np.stack(sums), axis=0)
    assert (~total.any(axis=1)).sum() == 1
    # And no two holders' tables agree anywhere but where all three have the id.
    for i in range(3):
        for j in range(i):
            assert not (sums[i] == sums[j]).all(axis=1).any()


def test_the_leader_cannot_tell_its_common_ids_while_one_share_of_the_shuffle_is_kept_back(tmp_path):
    ids = [f"{number}" for number in range(64)]
    leader, parties, sums = everyone(tmp_path, [ids[:32], ids[:32]], ids)
    leader.match(sums)
    guessed = leader.common([parties[0].share().data, secrets.token_bytes(32)])
    assert set(guessed) != set(ids[:32])  # 32 of 64 at random: right with a chance of 1 in 10^18
    assert set(leader.common([party.share().data for party in parties])) == set(ids[:32])


def test_a_dictionary_without_the_key_cannot_tell_blinded_ids_from_random_points():
    """The receiver knows every candidate id. Whatever it can compute looks the same for members and for others.

    It can hash candidates, raise them to powers of its own, and look at single bits of what came (such as the side of
    the twist). False alarm of the bit test: below 10⁻⁶ (4.9 standard deviations).
    """
    context, scalar = b"c" * 16, fresh_scalar()
    dictionary = [f"person {number}" for number in range(1000)]
    came = points_of(power(hashed(dictionary, context), scalar))
    others = points_of(power(hashed([secrets.token_hex(8) for _ in range(1000)], context), fresh_scalar()))
    assert all(map(on_curve, came)), "a point on the twist would give away a bit of its id"
    assert all(map(on_curve, others))
    own = fresh_scalar()
    known = set(points_of(hashed(dictionary, context))) | set(points_of(power(hashed(dictionary, context), own)))
    assert not known & set(came)
    assert not set(points_of(power(b"".join(came), own))) & set(points_of(power(hashed(dictionary, context), own)))
    for bit in (0, 1, 7, 100, 253):
        share = [sum(point[bit // 8] >> bit % 8 & 1 for point in points) for points in (came, others)]
        assert all(abs(count - 500) < 4.9 * np.sqrt(250) for count in share)


def test_a_table_looks_the_same_whether_a_known_key_is_in_it_or_not():
    """Who has F_i of a candidate reads a random value from the table, in it or not: the share and the noise alike."""
    context, keys = b"c" * 16, [secrets.token_bytes(32)]
    inside, outside = [f"in {n}" for n in range(2000)], [f"out {n}" for n in range(2000)]
    words = words_of(power(hashed(inside + outside, context), fresh_scalar()), b"s" * 16)
    shares = shares_of(inside, keys, context)
    found = look_up(words, table_of(words[:2000], shares ^ words[:2000, 4:6]), 2000) ^ words[:, 4:6]
    assert (found[:2000] == shares).all()
    ones = [np.unpackbits(part.view(np.uint8)).mean() for part in (found[:2000], found[2000:])]
    assert all(abs(share - 0.5) < 4.9 * 0.5 / np.sqrt(2000 * 128) for share in ones)
    assert len(np.unique(found, axis=0)) == 4000


@pytest.mark.parametrize("size", [1, 2, 3, 40, 3000])
def test_a_table_gives_every_key_its_value(size):
    words = words_of(secrets.token_bytes(32 * size), b"s" * 16)
    values = np.frombuffer(secrets.token_bytes(16 * size), dtype="<u8").reshape(-1, 2)
    table = table_of(words, values)
    assert len(table) == slots_for(size)
    assert (look_up(words, table, size) == values).all()


def test_keys_that_cannot_be_peeled_are_solved_over_the_dense_slots():
    words = words_of(secrets.token_bytes(32 * 300), b"s" * 16).copy()
    words[:6, :3] = words[6:12, :3]  # six pairs of keys with the same three slots
    values = np.frombuffer(secrets.token_bytes(16 * 300), dtype="<u8").reshape(-1, 2)
    assert (look_up(words, table_of(words, values), 300) == values).all()


def test_powers_commute_and_a_blinding_can_be_taken_away():
    points, key, blinding = hashed(["a", "b"], b"c"), fresh_scalar(), fresh_blinding()
    blinded = power(power(points, blinding.scalar), key)
    assert blinded == power(power(points, key), blinding.scalar)
    assert power(blinded, blinding.inverse) == power(points, key)


def test_every_id_is_hashed_onto_the_curve_and_none_onto_the_twist():
    assert all(map(on_curve, points_of(hashed([str(n) for n in range(300)], b"context"))))


def test_elligator_agrees_with_the_map_written_out_plainly():
    identity, context = "Zoë", b"run"
    digest = hashlib.sha512(b"parley/psi/id/v1" + len(context).to_bytes(4, "big") + context + identity.encode())
    t = int.from_bytes(digest.digest(), "little") % P
    v = -A * pow(1 + 2 * t * t, -1, P) % P
    square = pow(v**3 + A * v * v + v, (P - 1) // 2, P) == 1
    assert int.from_bytes(hashed([identity], context), "little") == (v if square else (-v - A) % P)


def test_points_of_different_alignments_have_nothing_in_common():
    assert hashed(["a"], b"one") != hashed(["a"], b"two")


@pytest.mark.parametrize("points", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_points_of_small_order_and_broken_lists_are_refused(points):
    with pytest.raises(PointRefused):
        power(points, fresh_scalar())


def test_a_share_of_the_shuffle_that_was_changed_on_its_way_is_refused(tmp_path):
    key, context = secrets.token_bytes(32), b"c" * 16
    one, two = (holding(tmp_path, ["a"], own, {1 - own: key}, context) for own in (0, 1))
    sealed = bytearray(one.sealed_shares().data[1])
    sealed[0] ^= 1
    with pytest.raises(PsiError, match="changed on its way"):
        two.open_shares([bytes(sealed), b""])
    with pytest.raises(PsiError, match="2 holders"):
        two.open_shares([b""])


def test_a_tag_that_is_not_of_this_table_is_refused(tmp_path):
    leader, parties, sums = everyone(tmp_path, [["a", "b"]], ["a"])
    leader.match(sums)
    for tags in (secrets.token_bytes(16), 2 * told(leader, 0)):
        with pytest.raises(PsiError, match="not in this table"):
            parties[0].common(tags)


def test_the_shuffle_is_a_permutation_that_every_share_changes():
    shares = [secrets.token_bytes(32) for _ in range(3)]
    order = permutation(shares, 500)
    assert sorted(order) == list(range(500))
    assert not np.array_equal(order, permutation([*shares[:2], secrets.token_bytes(32)], 500))


def test_the_shuffle_is_drawn_from_one_stream_however_many_places_it_has():
    """The order of an earlier version, which an alignment of mixed versions shares."""
    count = (1 << 16) + 7
    key = hashlib.sha256(b"parley/psi/shuffle/v1" + b"a" * 32 + b"b" * 32).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    expected = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")
    assert np.array_equal(permutation([b"a" * 32, b"b" * 32], count), expected)


def test_a_holder_goes_on_with_the_same_bytes(tmp_path):
    """Killed after half of its ids, after half of the leader's, and with its table made: the same answers."""
    ids, keys = [f"person {number}" for number in range(40)], HolderKeys.fresh()
    leader = power(hashed(ids[10:30], b"c" * 16), fresh_scalar())
    whole = holding(tmp_path / "a", ids, keys=keys)
    whole.make_table(WORKERS)
    whole.take(whole.power(leader, WORKERS))
    cut = holding(tmp_path / "b", ids, keys=keys)
    own = cut._points
    own.append(whole._points.read(0, 20))
    with own.path.open("ab") as file:
        file.write(b"half a point")
    cut.take(cut.power(leader[: 7 * POINT_BYTES], WORKERS))
    again = holding(tmp_path / "b", ids, keys=keys)
    assert (len(again.powers), len(again._points)) == (7, 20)
    again.make_table(WORKERS)
    again.take(again.power(leader[7 * POINT_BYTES :], WORKERS))
    assert again._points.read(0, 40) == whole._points.read(0, 40)
    assert [part.data for part in again.shuffled()] == [part.data for part in whole.shuffled()]
    last = holding(tmp_path / "b", ids, keys=keys)
    last.make_table(WORKERS)
    assert list(last.table()) == list(again.table())
    assert b"".join(part.slots for part in last.table(5)) == b"".join(part.slots for part in again.table())[5 * 16 :]
    assert (
        b"".join(part.data for part in last.shuffled(3)) == b"".join(part.data for part in whole.shuffled())[3 * 32 :]
    )


def test_what_is_kept_belongs_to_the_owner_alone_and_goes_at_the_end(tmp_path):
    kept = Unfinished(tmp_path / "state" / "one")
    kept.begin({"scalar": "00"})
    kept.records("powers", 32).append(bytes(64))
    assert {file.stat().st_mode & 0o777 for file in kept.directory.iterdir()} == {0o600}
    assert kept.directory.stat().st_mode & 0o777 == 0o700
    assert kept.facts["scalar"] == "00"
    forget_old(kept.directory.parent)
    assert kept.facts is not None
    kept.note(kept.facts | {"time": time.time() - KEPT_SECONDS - 1})
    assert kept.facts is None
    os.utime(kept.directory, times=(0, 0))
    forget_old(kept.directory.parent)
    assert not kept.directory.exists()


@pytest.mark.skipif(psi_lanes.lanes() is None, reason="no crypto_mb, or a processor without AVX-512 IFMA")
def test_eight_at_once_give_the_bytes_of_one_after_the_other(monkeypatch):
    points, scalar = secrets.token_bytes(32 * 101), fresh_scalar()
    fast = power(points, scalar)
    monkeypatch.setattr(psi_curve, "lanes", lambda: None)
    assert power(points, scalar) == fast


def test_a_library_that_is_wrong_on_this_processor_is_not_taken():
    assert not psi_lanes._is_right(lambda points, _: bytes(len(points)))


def test_workers_give_what_one_process_gives():
    ids, scalar = [str(n) for n in range(4500)], fresh_scalar()
    with Workers(processes=2) as workers:
        spread = workers.hashed_power(ids, b"c", scalar)
    assert spread == WORKERS.hashed_power(ids, b"c", scalar)


KILLED = """
import os, signal, sys
from parley.privacy import psi_workers

workers = psi_workers.Workers(processes=2)
workers.hashed_power([str(row) for row in range(2 * psi_workers.FEW)], b"test", bytes(range(32)))
print(*workers._pool._processes, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(process):
    status = Path(f"/proc/{process}/status")
    return status.exists() and "zombie" not in status.read_text()  # nobody may be there to reap it


def test_workers_end_when_their_service_is_killed():
    found = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    processes = [int(each) for each in found.stdout.split()]
    assert len(processes) == 2, found.stderr
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "workers outlive the service that started them"
        time.sleep(0.1)


def test_a_processor_that_the_library_is_not_for_is_asked_nothing_else(monkeypatch):
    class Library:
        def __init__(self, *_, **__):
            self.mbx_is_crypto_mb_applicable = type("Asked", (), {"__call__": lambda *_: 0})()

        def mbx_x25519_mb8(self, *_):
            raise AssertionError("an instruction that this processor does not know")

    monkeypatch.setattr(psi_lanes, "_installed", lambda *_: "library")
    monkeypatch.setattr("ctypes.CDLL", Library)
    psi_lanes.lanes.cache_clear()
    try:
        assert psi_lanes.lanes() is None
    finally:
        psi_lanes.lanes.cache_clear()
