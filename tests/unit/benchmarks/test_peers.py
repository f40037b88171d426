from parley.benchmarks.peers import PEERS, SYSTEMS, run, speed_rows


def test_ours_is_held_against_every_other_system_of_the_same_size():
    figures = {
        ("1 KB", "Parley, plain"): [100.0, 300.0, 200.0],
        ("1 KB", "bare gRPC, mTLS"): [200.0, 300.0, 100.0],
        ("1 KB", "Flower SuperLink"): [0.5],
        ("10 MB", "bare gRPC, mTLS"): [4.0],
    }
    compared = {row["baseline"]: row["ratio"] for row in speed_rows(figures) if row["baseline"]}
    assert compared == {"bare gRPC, mTLS": 1.0, "Flower SuperLink": 400.0}


def test_every_system_says_what_is_not_like_for_like():
    assert set(PEERS) < set(SYSTEMS)


def test_absent_peers_are_left_out_and_the_reader_is_told_how_to_get_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PARLEY_PEERS", str(tmp_path))
    rows = run(sizes=(), repeats=1)
    assert {row["case"] for row in rows} == {"machine"}
    assert "`make peers` installs it" in capsys.readouterr().out
