"""Entity alignment between real processes: private set intersection, then training on the rows that it found."""

import csv
import json
import random
import time

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.contracts.alignment.v1 import alignment_service_pb2 as pb
from parley.contracts.alignment.v1 import alignment_service_pb2_grpc as pb_grpc
from parley.privacy.psi_curve import fresh_scalar, hashed, power
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import VERSION
from parley.splitting import split_dataset
from parley.tables.loading import id_digest
from parley.testing.federations import ForkedFederation

PARTIES = ("bank", "shop", "telco")
SHARES = {"bank": range(1500), "shop": range(100, 1700), "telco": range(50, 1600), "labels": range(200, 1797)}
COMMON = [str(row) for row in range(200, 1500)]
SPELLINGS = {"bank": lambda row: row, "shop": lambda row: f" {row} ", "telco": lambda row: float(row), "labels": str}
"""Whole numbers, text with blanks, floating-point numbers and text: the same ids in four files."""


def shuffled(table, holder):
    """A holder's rows in an order of its own, under its own spelling of ids."""
    order = random.Random(holder).sample(list(SHARES[holder]), len(SHARES[holder]))
    rows = table.take(order)
    ids = pa.array([SPELLINGS[holder](int(row)) for row in rows.column("id").to_pylist()])
    return rows.set_column(rows.column_names.index("id"), "id", ids)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Digits at three parties: whole tables to align, and the same rows picked by hand."""
    directory = tmp_path_factory.mktemp("data")
    split_dataset("digits", PARTIES, directory / "whole")
    for holder in (*PARTIES, "labels"):
        table = pq.read_table(directory / "whole" / f"{holder}.parquet")
        ids = [str(identity) for identity in table.column("id").to_pylist()]
        table = table.take([ids.index(str(row)) for row in range(len(ids))])  # row number = id
        (directory / "apart").mkdir(exist_ok=True)
        (directory / "picked").mkdir(exist_ok=True)
        pq.write_table(shuffled(table, holder), directory / "apart" / f"{holder}.parquet")
        pq.write_table(table.take([int(identity) for identity in COMMON]), directory / "picked" / f"{holder}.parquet")
        with (directory / f"messy-{holder}.csv").open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "label"])
            writer.writerows([f"Zoë {n}", n, n % 2] for n in range(60))
            if holder == "shop":
                writer.writerows([["", 1, 0], [" ", 2, 1], ["Zoe\u0308 7", 3, 1], ["Zoë 9", 4, 0]])
        many = [f"person {n}" for n in range(16000)] + [f"{n} of {holder}" for n in range(1000)]
        pq.write_table(
            pa.table({"id": many, "a": range(17000), "label": [0, 1] * 8500}), directory / f"many-{holder}.parquet"
        )
    (directory / "latin.csv").write_bytes("id,a,label\nZoë,1,0\n".encode("latin-1"))
    (directory / "few.csv").write_text("id,a,label\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(10)))
    return directory


def tables_of(data, holder):
    found = {name: {"path": str(data / name / f"{holder}.parquet")} for name in ("apart", "picked")}
    messy = {"label": "label"} if holder != "labels" else {}
    found["messy"] = {"path": str(data / f"messy-{holder}.csv"), **messy}
    found["latin"] = {"path": str(data / ("latin.csv" if holder == "bank" else f"messy-{holder}.csv")), **messy}
    found["few"] = {"path": str(data / ("few.csv" if holder == "bank" else f"apart/{holder}.parquet"))}
    found["many"] = {"path": str(data / f"many-{holder}.parquet"), **messy}
    found["closed"] = found["apart"]
    return found


@pytest.fixture(scope="module")
def federation(data, tmp_path_factory):
    local = ForkedFederation(
        tmp_path_factory.mktemp("federation"),
        {party: tables_of(data, party) for party in PARTIES},
        tables_of(data, "labels"),
        policy={"tables": ["apart", "picked", "messy", "latin", "few", "many"], "alignment": {"per_day": 6}},
    )
    with local:
        yield local


@pytest.fixture(scope="module")
def aligned(federation):
    """The alignment that most tests look at."""
    stages = []
    with federation.connect() as client:
        result = client.align("customers", PARTIES, "apart", progress=lambda *step: stages.append(step))
    return result, stages


@pytest.fixture
def client(federation, aligned):
    with federation.connect() as connected:
        yield connected


def spec(table, **changes):
    content = {
        "name": "small",
        "seed": 3,
        "table": table,
        "parties": list(PARTIES),
        "train": {
            "algorithm": "bambi",
            "model": {"kind": "mlp", "hidden": [16], "out": 8},
            "upper": {"steps": 4, "batch": 128, "optimiser": {"kind": "adam", "step": 0.01}},
            "lower": {"steps": 1, "batch": 256},
        },
        "privacy": {"labels": {"mechanism": "off"}},
        "evaluate_every": 1,
    }
    return yaml.safe_dump(content | changes)


def test_the_common_rows_are_found_whatever_their_order_and_spelling(aligned):
    result, stages = aligned
    assert result.matched == len(COMMON)
    assert result.id_digest == id_digest(COMMON)
    assert [(held.holder, held.rows, held.ids) for held in result.tables] == [
        ("coordinator", 1597, 1597),
        ("bank", 1500, 1500),
        ("shop", 1600, 1600),
        ("telco", 1550, 1550),
    ]
    assert ("blinding", 1597, 1597) in stages
    assert ("comparing", 3 * 1597, 3 * 1597) in stages


def test_a_run_on_the_alignment_is_the_run_on_tables_that_were_aligned_by_hand(client):
    results, predictions = [], []
    for text in (spec("apart", alignment="customers"), spec("picked")):
        run = client.start(text)
        metrics = run.result()
        results.append({name: value for name, value in metrics.items() if name != "seconds"})
        predictions.append(run.predict(ids=["200", "1499", "777"]))
        data = [event.data_opened for event in run.watch() if event.kind == "data"]
        assert {opened.id_sha256 for opened in data if opened.party} == {id_digest(COMMON)}
        assert [(each.alignment, each.rows) for each in data if each.alignment] == (
            [("customers", 1300)] if "alignment" in text else []
        )
    assert results[0].pop("bytes") != 0
    assert results[0] == {name: value for name, value in results[1].items() if name != "bytes"}
    assert (predictions[0].scores == predictions[1].scores).all()


def test_predicting_the_aligned_table_names_the_common_rows_only(client):
    run = client.start(spec("apart", alignment="customers"))
    run.result()
    assert run.predict().ids == COMMON


def test_each_party_stores_its_rows_and_keeps_them_when_it_is_restarted(federation, client):
    stored = json.loads((federation.directory / "state/bank/alignments/customers.json").read_text())
    assert sorted(stored["ids"], key=int) == COMMON
    assert (stored["table"], stored["coordinator"]) == ("apart", "coordinator")
    for name in ("bank", "coordinator"):
        federation.kill(name)
        federation.restart(name)
    with federation.connect() as again:
        assert again.start(spec("apart", alignment="customers")).result()["test accuracy"] > 0.5


def test_without_an_alignment_tables_that_differ_are_refused_as_before(client):
    with pytest.raises(RequestRefused) as refusal:
        client.start(spec("apart"))
    assert refusal.value.reason == "ROWS_DIFFER"


def test_an_unknown_alignment_is_refused_with_what_to_do(client):
    with pytest.raises(RequestRefused, match="parley align") as refusal:
        client.start(spec("apart", alignment="nothing"))
    assert refusal.value.reason == "ALIGNMENT_UNKNOWN"


def test_an_alignment_of_another_table_is_refused(client):
    with pytest.raises(RequestRefused, match="is of table 'apart'"):
        client.start(spec("picked", alignment="customers"))


def test_another_label_table_about_the_same_rows_serves_with_an_alignment(client):
    """Of a second outcome, or of exposures and groups beside the labels."""
    own = client.start(spec("apart", alignment="customers")).result()
    other = client.start(spec("apart", alignment="customers", labels="picked")).result()
    assert other["test accuracy"] == own["test accuracy"]


def test_a_name_is_never_given_twice(client):
    with pytest.raises(RequestRefused) as refusal:
        client.align("customers", PARTIES, "apart")
    assert refusal.value.reason == "ALIGNMENT_TAKEN"


def test_an_alignment_makes_no_sense_where_parties_hold_different_rows(client):
    horizontal = {
        "algorithm": "fedbio",
        "rounds": 1,
        "task": {"kind": "data_cleaning", "classes": ["0", "1"], "checked": "x"},
    }
    problems = client.check(spec("apart", alignment="customers", train=horizontal))
    assert any("nothing to align" in problem.message for problem in problems)


def test_missing_and_repeated_ids_are_counted_and_dropped_as_asked(client):
    with pytest.raises(RequestRefused, match="4 of 64 rows in shop's table messy") as refusal:
        client.align("messy", PARTIES, "messy")
    assert "--duplicates" in str(refusal.value)
    first = client.align("messy-first", PARTIES, "messy", duplicates="first")
    dropped = client.align("messy-dropped", PARTIES, "messy", duplicates="drop")
    shop = next(held for held in first.tables if held.holder == "shop")
    assert (shop.rows, shop.missing, shop.duplicates, shop.ids) == (64, 2, 4, 60)
    assert (first.matched, dropped.matched) == (60, 58)
    assert first.id_digest == id_digest(f"Zoë {n}" for n in range(60))


def test_a_file_that_is_not_utf_8_is_one_clear_refusal(client, federation):
    with pytest.raises(RequestRefused, match="its owner finds the file, line and remedy"):
        client.align("latin", PARTIES, "latin", duplicates="first")
    assert "TableUnreadable" in (federation.directory / "bank.log").read_text()


def test_an_intersection_that_points_at_persons_is_kept_from_everyone(client, federation):
    with pytest.raises(RequestRefused, match=r"only \d+ ids are common, .* asks for at least 30"):
        client.align("few", PARTIES, "few")
    assert not list(federation.directory.glob("state/*/alignments/few.json"))


def test_a_table_that_the_policy_closes_is_not_aligned(client):
    with pytest.raises(RequestRefused, match="table closed is not open"):
        client.align("closed", PARTIES, "closed")


def test_unknown_parties_and_labels_are_named(client):
    with pytest.raises(RequestRefused) as refusal:
        client.align("x", ["bank", "nobody"], "apart")
    assert refusal.value.reason == "PARTY_UNKNOWN"
    with pytest.raises(RequestRefused) as refusal:
        client.align("x", PARTIES, "apart", labels="none")
    assert refusal.value.reason == "LABELS_MISSING"


def test_an_alignment_goes_on_after_a_party_and_the_coordinator_were_killed(client, federation):
    stages = []
    others = set(federation.directory.glob("state/*/alignments/unfinished/*"))

    def killing(victim, *when):
        def tell(stage, *_):
            if stage in when and victim not in stages:
                stages.append(victim)
                federation.kill(victim)

        return tell

    for victim in ("bank", "coordinator"):
        with federation.connect() as doomed, pytest.raises(RequestRefused):
            doomed.align("many", PARTIES, "many", progress=killing(victim, "comparing", "matching"))
        kept = list(federation.directory.glob("state/*/alignments/unfinished/*/*"))
        assert any(file.name == "powers" for file in kept)
        assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
        federation.restart(victim)
    stages.clear()
    with federation.connect() as again:
        result = again.align("many", PARTIES, "many", progress=lambda *step: stages.append(step[0]))
    assert result.matched == 16000
    assert result.id_digest == id_digest(f"person {n}" for n in range(16000))
    assert "blinding" not in stages, "the parties have all of the coordinator's ids: none is raised again"
    attempts = (federation.directory / "state/bank/alignments/attempts.jsonl").read_text()
    assert attempts.count('"name": "many"') == 1
    assert set(federation.directory.glob("state/*/alignments/unfinished/*")) <= others, "what is done is forgotten"


def test_a_coordinator_that_asks_too_often_is_turned_away_and_a_restart_does_not_help(client, federation):
    log = federation.directory / "state/bank/alignments/attempts.jsonl"
    with log.open("a") as file:
        for _ in range(6):
            file.write(json.dumps({"time": time.time(), "coordinator": "coordinator", "table": "picked", "name": "n"}))
            file.write("\n")
    with pytest.raises(RequestRefused, match="aligned 6 times within a day"):
        client.align("again", PARTIES, "picked")
    federation.kill("bank")
    federation.restart("bank")
    with federation.connect() as again, pytest.raises(RequestRefused, match="aligned 6 times within a day"):
        again.align("again", PARTIES, "picked")


def conversation(federation, messages):
    """What the bank answers to these messages from the coordinator."""
    identity = load_identity(federation.identity("coordinator"))
    options = channel_options("party", "bank")
    with grpc.secure_channel(federation.addresses["bank"], channel_credentials(identity), options=options) as channel:
        return list(pb_grpc.AlignmentServiceStub(channel).Intersect(iter(messages), timeout=30))


def opening(**changes):
    fields = {
        "alignment_id": "0123456789abcdef",
        "name": "direct",
        "table": "apart",
        "parties": ["bank"],
        "coordinator_ids": 100,
        "version": VERSION,
    }
    return pb.IntersectRequest(open=pb.Open(**fields | changes))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([opening(name="../../etc")], "MESSAGE_INVALID"),
        ([opening(parties=["shop"])], "MESSAGE_INVALID"),
        ([opening(coordinator_ids=1 << 40)], "MESSAGE_INVALID"),
        ([opening(version="0")], "VERSION_MISMATCH"),
        ([opening(coordinator_ids=3)], "TOO_FEW_MATCHES"),
        ([opening(table="nowhere")], "POLICY_REFUSED"),
        ([opening(), opening()], "MESSAGE_INVALID"),
        ([opening(), pb.IntersectRequest(begin=pb.Begin())], "MESSAGE_INVALID"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_party_refuses_what_breaks_the_protocol(federation, messages, reason):
    with pytest.raises(grpc.RpcError) as refusal:
        conversation(federation, messages)
    assert reason_of(refusal.value) == reason


def talk(federation, *messages):
    """What the bank answers until the stream ends, and why it ended."""
    answers = []
    identity = load_identity(federation.identity("coordinator"))
    options = channel_options("party", "bank")
    with grpc.secure_channel(federation.addresses["bank"], channel_credentials(identity), options=options) as channel:
        try:
            answers.extend(pb_grpc.AlignmentServiceStub(channel).Intersect(iter(messages), timeout=30))
        except grpc.RpcError as error:
            return answers, error
    return answers, None


def test_an_alignment_that_goes_on_answers_the_same_and_nothing_else(federation):
    def opened_again(**held):
        return pb.IntersectRequest(open=opening(name="cut", table="messy", **held).open)

    def blinded(points):
        return pb.IntersectRequest(blinded_ids=pb.BlindedIds(points=points))

    [first], _ = talk(federation, opened_again())
    begin = pb.IntersectRequest(begin=pb.Begin(keys=[first.opened.key]))
    shuffle = pb.IntersectRequest(shuffle=pb.Shuffle(sealed_shares=[b""]))
    points = power(hashed([str(n) for n in range(100)], b"c"), fresh_scalar())
    answers, _ = talk(federation, opened_again(), begin, shuffle, blinded(points[: 32 * 60]))
    assert answers[0] == first
    assert len(answers) == 2
    whole, _ = talk(federation, opened_again(), begin, shuffle, blinded(points[32 * 60 :]))
    assert whole[0].opened.blinded_held == 60
    assert (whole[0].opened.key, whole[1]) == (first.opened.key, answers[1])
    rest, _ = talk(federation, opened_again(evaluated_held=30, slots_held=5), begin, shuffle)
    assert [part.evaluated_ids.points for part in rest[2:3]] == [whole[2].evaluated_ids.points[32 * 30 :]]
    assert rest[3].table_slots.slots == whole[3].table_slots.slots[16 * 5 :]
    other = pb.IntersectRequest(shuffle=pb.Shuffle(sealed_shares=[b"other"]))
    _, error = talk(federation, opened_again(), begin, other)
    assert "is not what came before" in error.details()
    anew, _ = talk(federation, opened_again())
    assert anew[0].opened.key != first.opened.key, "a coordinator that deviates begins anew, and is counted again"


def test_an_alignment_that_goes_on_takes_no_other_points_and_no_other_matches(federation):
    def start(*more):
        return talk(federation, opening(name="more", table="messy"), *more)

    points = power(hashed([str(n) for n in range(100)], b"c"), fresh_scalar())
    send = pb.IntersectRequest(blinded_ids=pb.BlindedIds(points=points))
    shuffle = pb.IntersectRequest(shuffle=pb.Shuffle(sealed_shares=[b""]))
    none = pb.IntersectRequest(matches=pb.Matches(total=1, tags=bytes(16)))
    key = start()[0][0].opened.key
    begin = pb.IntersectRequest(begin=pb.Begin(keys=[key]))
    start(begin, shuffle, send)
    _, error = start(begin, shuffle, send)
    assert "`matches` was expected" in error.details()
    begin = pb.IntersectRequest(begin=pb.Begin(keys=[start()[0][0].opened.key]))
    _, error = start(begin, shuffle, send, none)
    assert "not in this table" in error.details()
    assert start()[0][0].opened.key != begin.begin.keys[0]


def test_the_command_shows_sizes_and_what_to_do_next(federation, aligned, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(spec("apart"))
    options = ["--address", federation.addresses["coordinator"], "--identity", str(federation.identity("client"))]
    shown = CliRunner().invoke(app, ["align", str(file), "--name", "by-command", *options])
    assert shown.exit_code == 0, shown.output
    assert "1300 rows are common" in shown.output
    assert "alignment: by-command" in shown.output
    listed = ["align", "--parties", "bank,shop,telco", "--table", "apart", "--name", "as-json", "--json", *options]
    answer = json.loads(CliRunner().invoke(app, listed).stdout)
    assert (answer["matched"], len(answer["tables"])) == (1300, 4)
    again = CliRunner().invoke(app, ["align", str(file), "--name", "by-command", *options])
    assert again.exit_code == 1
    assert "choose another name" in again.output
