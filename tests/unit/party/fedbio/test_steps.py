import lzma
from dataclasses import replace

import numpy as np
import pytest

from parley.numerics.few_shot import sample_task
from parley.numerics.storm import Schedule
from parley.party.fedbio.hyper_representation import HyperRepresentation, load_omniglot
from parley.party.fedbio.objectives import (
    USUAL_ROWS,
    AutogradObjective,
    DataCleaning,
    InvalidData,
    Measures,
    Quadratic,
    initial_network,
    suspects,
)
from parley.party.fedbio.steps import (
    Blocks,
    InvalidSettings,
    MeanMismatch,
    Party,
    Randomness,
    RoundMismatch,
    Settings,
)
from parley.privacy.ring import Ring
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.rounds import MEASURE_UNIT

RANDOM = Randomness(seed=5, party="north")


def asked(phase: str, k: int, mean: np.ndarray | None = None) -> AveragingRound:
    return AveragingRound(phase, k, (0, 1), mean)


def quadratic(samples: int = 1) -> Quadratic:
    g = np.random.default_rng(0)
    root = g.standard_normal((3, 3))
    return Quadratic(
        H=root @ root.T + np.eye(3),
        B=g.standard_normal((3, 2)),
        c=g.standard_normal((samples, 3)),
        a=g.standard_normal(3),
        s=np.zeros(2),
        ridge=0.1,
    )


def settings(**changes) -> Settings:
    return replace(Settings(eta=0.1, gamma=0.05, tau=0.05, local_steps=2), **changes)


def started(**changes):
    party = Party(settings(**changes), quadratic())
    return party, party.start(np.ones(2), np.ones(3))


def cleaning(hidden=(), rows=12) -> DataCleaning:
    g = np.random.default_rng(1)
    return DataCleaning(
        g.standard_normal((rows, 4)),
        g.integers(0, 3, rows),
        g.standard_normal((6, 4)),
        g.integers(0, 3, 6),
        classes=3,
        hidden=hidden,
    )


def representation() -> HyperRepresentation:
    g = np.random.default_rng(2)
    images = g.integers(0, 256, (5, 6, 8, 8), dtype=np.uint8)
    tasks = [sample_task(images, ways=3, shots=1, queries=2, generator=g) for _ in range(2)]
    return HyperRepresentation(tasks, ways=3, filters=2, layers=2)


@pytest.mark.parametrize("objective", [cleaning(), cleaning(hidden=(5,)), representation()])
def test_autograd_products_agree_with_finite_differences_of_the_gradients(objective):
    g = np.random.default_rng(3)
    x = 0.5 * g.standard_normal(objective.upper_size)
    y = 0.5 * g.standard_normal(objective.lower_size)
    v, rows, h = g.standard_normal(y.size), np.arange(objective.lower_rows), 1e-5
    terms = objective.lower_terms(x, y, v, rows)

    def gradient(x_, y_):
        return objective.lower_terms(x_, y_, v, rows).gradient

    hessian = (gradient(x, y + h * v) - gradient(x, y - h * v)) / (2 * h)
    np.testing.assert_allclose(terms.hessian, hessian, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(objective.hessian_product(x, y, v, rows), terms.hessian, atol=1e-12)
    for i in g.choice(x.size, 4, replace=False):
        e = np.eye(1, x.size, i)[0]
        cross = v @ (gradient(x + h * e, y) - gradient(x - h * e, y)) / (2 * h)
        assert terms.cross[i] == pytest.approx(cross, rel=1e-3, abs=1e-6)


def test_autograd_reproduces_the_closed_form_of_the_quadratic():
    import torch

    exact = quadratic(samples=4)

    class Written(AutogradObjective):
        def lower_loss(self, x, y, rows):
            H, B, c = (torch.from_numpy(part) for part in (exact.H, exact.B, exact.c[rows].mean(axis=0)))
            return 0.5 * y @ H @ y - y @ (B @ x + c)

        def upper_loss(self, x, y, rows):
            return 0.5 * ((y - torch.from_numpy(exact.a)) ** 2).sum() + 0.05 * (x @ x)

    x, y, v, rows = np.ones(2), np.arange(3.0), np.array([1.0, -2.0, 0.5]), np.array([0, 2])
    for ours, closed in zip(Written().lower_terms(x, y, v, rows), exact.lower_terms(x, y, v, rows), strict=True):
        np.testing.assert_allclose(ours, closed, atol=1e-12)
    for ours, closed in zip(Written().upper_gradients(x, y, rows), exact.upper_gradients(x, y, rows), strict=True):
        np.testing.assert_allclose(ours, closed, atol=1e-12)


def test_one_fedbio_step_is_equation_6():
    party, state = started(local_steps=1)
    state = replace(state, variables=replace(state.variables, u=np.array([0.5, -1.0, 2.0])))
    q, x, y, u = party.objective, state.variables.x, state.variables.y, state.variables.u
    _, sent = party.contribute(state, asked("variables", 0), RANDOM)
    np.testing.assert_allclose(sent[:2], x - 0.1 * (0.1 * x + q.B.T @ u))
    np.testing.assert_allclose(sent[2:5], y - 0.05 * (q.H @ y - q.B @ x - q.c[0]))
    np.testing.assert_allclose(sent[5:], u - 0.05 * (q.H @ u - (y - q.a)))


def test_a_step_is_pure_so_a_repeated_instruction_gives_the_same_bytes():
    party = Party(settings(accelerated=True, lower_batch=2), quadratic(samples=9))
    state = party.start(np.ones(2), np.ones(3))
    first, second = (party.contribute(state, asked("variables", 0), RANDOM)[1] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    other = party.contribute(state, asked("variables", 0), Randomness(6, "north"))[1]
    assert other.tobytes() != first.tobytes()


def test_momenta_are_evaluated_at_the_averaged_variables():
    party, state = started(accelerated=True, schedule=Schedule(0.5), c_nu=2.0, c_omega=2.0, c_u=2.0)
    state, sent = party.contribute(state, asked("variables", 0), RANDOM)
    average = sent + 1.0
    before, kept = state.previous, state.momenta
    state, momenta = party.contribute(state, asked("momenta", 0, average), RANDOM)
    q = party.objective
    at_average = q.H @ average[2:5] - q.B @ average[:2] - q.c[0]
    at_previous = q.H @ before.y - q.B @ before.x - q.c[0]
    np.testing.assert_allclose(momenta[2:5], at_average + 0.5 * (kept.y - at_previous))
    np.testing.assert_allclose(state.variables.y, average[2:5])


def test_private_sample_weights_never_enter_the_vector_and_are_stepped_undivided():
    objective = cleaning()
    party = Party(settings(upper="private", local_steps=1, eta=3.0), objective)
    state = party.start(np.zeros(12), np.zeros(objective.lower_size))
    state = replace(state, variables=replace(state.variables, u=np.ones(objective.lower_size)))
    moved, sent = party.contribute(state, asked("variables", 0), RANDOM)
    assert sent.size == 2 * objective.lower_size
    cross = objective.lower_terms(state.variables.x, state.variables.y, state.variables.u, np.arange(12)).cross
    np.testing.assert_allclose(moved.variables.x, 3.0 * cross)
    after, _ = party.contribute(moved, asked("variables", 1, sent), RANDOM)
    assert after.round_index == 1


def test_a_local_lower_problem_sends_the_upper_variable_only():
    party, state = started(lower="local", accelerated=True)
    state, sent = party.contribute(state, asked("variables", 0), RANDOM)
    assert sent.size == 2
    own = state.variables.y
    state, momenta = party.contribute(state, asked("momenta", 0, sent), RANDOM)
    assert momenta.size == 2
    np.testing.assert_array_equal(state.variables.y, own)


def test_a_party_that_sat_out_takes_over_both_averages():
    party, state = started(accelerated=True)
    both = np.arange(16.0) / 10
    moved, _ = party.contribute(state, asked("variables", 7, both), RANDOM)
    assert moved.round_index == 7
    single = Party(settings(accelerated=True, local_steps=1), quadratic())
    _, sent = single.contribute(state, asked("variables", 7, both), RANDOM)
    np.testing.assert_allclose(sent, both[:8] - np.repeat([0.1, 0.05, 0.05], [2, 3, 3]) * both[8:])


def test_a_party_that_sat_out_is_not_content_with_momenta_alone():
    party, state = started(accelerated=True)
    with pytest.raises(MeanMismatch, match="needs its averaged variables"):
        party.contribute(state, asked("variables", 7, np.zeros(8)), RANDOM)


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (asked("momenta", 0, np.zeros(8)), RoundMismatch),
        (asked("variables", 3), MeanMismatch),
        (asked("variables", 1, np.zeros(5)), MeanMismatch),
        (asked("gossip", 0), RoundMismatch),
    ],
)
def test_an_instruction_out_of_place_is_refused(asked, refusal):
    party, state = started()
    with pytest.raises(refusal):
        party.contribute(state, asked, RANDOM)


def test_a_round_that_is_over_is_not_run_again():
    party, state = started()
    state, sent = party.contribute(state, asked("variables", 0), RANDOM)
    with pytest.raises(RoundMismatch, match="round 0"):
        party.contribute(state, asked("variables", 0, sent), RANDOM)


def test_a_new_round_waits_for_the_momenta_of_the_last():
    party, state = started(accelerated=True)
    state, sent = party.contribute(state, asked("variables", 0), RANDOM)
    with pytest.raises(RoundMismatch, match="still open"):
        party.contribute(state, asked("variables", 1, sent), RANDOM)


def test_steps_that_are_too_large_keep_the_sum_from_opening_and_do_not_say_at_whom():
    party, state = started(gamma=1e200, local_steps=5)
    with np.errstate(all="ignore"):
        _, draft = party.contribute(state, asked("variables", 0), RANDOM)
    ring = replace(Ring.WIDE, beyond="spoil")
    assert not ring.opens(ring.decode(ring.encode(draft)), 3)


def test_a_radius_that_binds_is_counted():
    party, state = started(radius=1e-3)
    state, sent = party.contribute(state, asked("variables", 0), RANDOM)
    assert state.projections == 2
    assert np.linalg.norm(sent[5:]) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "wrong", [{"eta": 0.0}, {"local_steps": 0}, {"radius": -1.0}, {"upper": "private", "lower": "local"}]
)
def test_settings_that_describe_no_algorithm_are_refused(wrong):
    with pytest.raises(InvalidSettings):
        settings(**wrong)


def test_evaluation_measures_the_average_and_changes_nothing():
    objective = cleaning()
    party = Party(settings(upper="private"), objective)
    state = party.start(np.zeros(12), np.zeros(objective.lower_size))
    same, measures = party.contribute(state, asked("evaluate", 0, np.zeros(2 * objective.lower_size)), RANDOM)
    assert same is state
    assert measures[0] * MEASURE_UNIT == pytest.approx(6 * np.log(3))
    assert measures[2] * MEASURE_UNIT == 6
    assert not measures[3:].any(), "this party has no test rows and does not know which labels are wrong"


def test_where_the_truth_is_known_the_weights_and_the_model_are_judged():
    objective = cleaning()
    wrong = np.arange(12) < 3
    judged = replace(objective, test=(objective.features, objective.labels), wrong=wrong)
    measures = judged.measure(np.where(wrong, -1.0, 1.0), np.zeros(objective.lower_size))
    assert (measures.auc, measures.judges, measures.test_rows) == (1.0, 1.0, 12.0)
    assert measures.test_errors == np.count_nonzero(objective.labels != 0), "a model of zeros says class 0"
    assert judged.measure(np.zeros(12), np.zeros(objective.lower_size)).auc == 0.5
    nothing_wrong = replace(objective, wrong=np.zeros(12, dtype=bool))
    assert nothing_wrong.measure(np.zeros(12), np.zeros(objective.lower_size)).judges == 0


def test_the_end_leaves_every_party_with_the_average():
    party, state = started()
    state, nothing = party.contribute(state, asked("finish", 4, np.arange(8.0)), RANDOM)
    assert nothing.size == 0
    np.testing.assert_array_equal(state.variables.y, [2.0, 3.0, 4.0])


def test_the_most_suspicious_row_is_the_one_of_least_weight():
    assert suspects(np.array([0.3, -2.0, 5.0, -0.1])).tolist() == [1, 3, 0, 2]


def test_parties_that_share_a_generator_start_from_the_same_network():
    first, second = (initial_network((4, 5, 3), np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.size == cleaning(hidden=(5,)).lower_size


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InvalidData, match="labels must lie"):
        replace(cleaning(), classes=2)


def test_a_local_run_on_few_shot_tasks_lowers_the_query_loss():
    objective = representation()
    g = np.random.default_rng(4)
    party = Party(Settings(eta=0.5, gamma=0.3, tau=0.3, local_steps=5, lower="local", neumann_terms=5), objective)
    state = party.start(objective.initial_upper(g), np.zeros(objective.lower_size))
    before = objective.measure(state.variables.x, state.variables.y).loss
    mean = None
    for k in range(20):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
    assert objective.measure(state.variables.x, state.variables.y).loss < 0.8 * before


def test_the_hessian_of_a_head_is_at_most_one_whatever_the_backbone():
    objective = representation()
    g = np.random.default_rng(6)
    x, y = 30.0 * g.standard_normal(objective.upper_size), g.standard_normal(objective.lower_size)
    v = g.standard_normal(y.size)
    for _ in range(50):
        v = objective.hessian_product(x, y, v / np.linalg.norm(v), np.arange(2))
    assert np.linalg.norm(v) <= 1.0 + objective.ridge


def test_omniglot_is_read_from_a_path_and_another_array_is_refused(tmp_path):
    for name, shape in (("right", (3, 20, 28, 28)), ("wrong", (3, 28, 28))):
        with lzma.open(tmp_path / f"{name}.npy.xz", "wb") as file:
            np.save(file, np.zeros(shape, dtype=np.uint8))
    assert load_omniglot(tmp_path / "right.npy.xz").shape == (3, 20, 28, 28)
    with pytest.raises(InvalidData, match="wrong"):
        load_omniglot(tmp_path / "wrong.npy.xz")


def labelled(wrong: float, rows: int = 600) -> tuple[DataCleaning, np.ndarray]:
    """Three clouds of points; a share of the labels is drawn anew, and thirty rows are checked."""
    g = np.random.default_rng(3)
    centres = 2.5 * np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    right = g.integers(0, 3, rows + 30)
    features = centres[right] + g.standard_normal((rows + 30, 2))
    labels = right[:rows].copy()
    redrawn = g.choice(rows, round(wrong * rows), replace=False)
    labels[redrawn] = g.integers(0, 3, len(redrawn))
    return DataCleaning(features[:rows], labels, features[rows:], right[rows:], 3), labels != right[:rows]


def warmed(objective: DataCleaning, rounds: int = 60) -> tuple[Party, np.ndarray]:
    party = Party(settings(gamma=0.5, local_steps=5, upper="private", warm_rounds=rounds), objective)
    state, mean = party.start(np.zeros(objective.upper_size), np.zeros(objective.lower_size)), None
    for k in range(rounds):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
    state, _ = party.contribute(state, asked("finish", rounds, mean), RANDOM)
    return party, state.variables.x


@pytest.mark.parametrize("wrong", [0.3, 0.8])
def test_after_warm_rounds_weights_tell_wrong_labels_from_right_ones(wrong):
    objective, is_wrong = labelled(wrong)
    _, x = warmed(objective)
    assert np.mean(x[is_wrong]) < np.mean(x[~is_wrong]) - 1
    ranks = np.argsort(np.argsort(-x))
    found = np.count_nonzero(is_wrong)
    auc = (ranks[is_wrong].sum() - found * (found - 1) / 2) / (found * (len(x) - found))
    assert 1 - auc > 0.9 or auc > 0.9


def test_the_share_of_right_labels_is_found():
    objective, _ = labelled(0.6, rows=3000)
    party = Party(settings(gamma=0.5, local_steps=5, upper="private", warm_rounds=80), objective)
    state, mean = party.start(np.zeros(objective.upper_size), np.zeros(objective.lower_size)), None
    for k in range(80):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
    assert objective.trust(state.variables.y) == pytest.approx(0.4, abs=0.08)


def test_warm_gradients_are_those_of_the_likelihood():
    objective, _ = labelled(0.3, rows=40)
    rows, checked = np.arange(40), np.arange(30)
    y = 0.1 * np.random.default_rng(0).standard_normal(objective.lower_size)

    def value(at, trust):
        weights, bias = at[:6].reshape(2, 3), at[6:]

        def given(features, labels):
            scores = features @ weights + bias
            return np.exp(scores)[np.arange(len(labels)), labels] / np.exp(scores).sum(axis=1)

        sure = -np.log(given(objective.validation_features, objective.validation_labels)).mean()
        own = given(objective.features, objective.labels)
        if trust is not None:
            sure = (30 / 40 * sure - np.log(trust * own + (1 - trust) / 3).mean()) / trust
        doubt = 1 if trust is None else 1 - trust
        return sure + 0.5 * doubt * np.sqrt(USUAL_ROWS / 40) * objective.ridge * at @ at

    for trust in (None, 0.7):
        found = objective.warm_gradient(y, trust, rows, checked)
        steps = 1e-6 * np.eye(y.size)
        wanted = [(value(y + step, trust) - value(y - step, trust)) / 2e-6 for step in steps]
        np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_warm_steps_grow_with_the_classes_as_far_as_labels_are_right():
    objective, _ = labelled(0.3, rows=40)
    steps = [objective.largest_warm_step(trust) / objective.largest_step for trust in (None, 0.0, 0.5, 1.0)]
    assert steps == pytest.approx([1, 1, (1 + np.sqrt(3 / 2)) / 2, np.sqrt(3 / 2)])
    network = replace(objective, hidden=(4,))
    assert network.largest_warm_step(1.0) == network.largest_step < objective.largest_step


def test_weights_begin_to_move_after_the_warm_rounds_from_where_the_model_puts_them():
    objective, _ = labelled(0.3, rows=60)
    party = Party(settings(upper="private", accelerated=True, warm_rounds=2), objective)
    state, mean = party.start(np.zeros(60), np.zeros(objective.lower_size)), None
    for k in range(2):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
        assert not state.variables.x.any()
    before = objective.warm_weights(state.variables.y)
    state, mean = party.contribute(state, asked("variables", 2, mean), RANDOM)
    moved = np.abs(state.variables.x - before)
    assert 0 < moved.max() < 1
    state, momenta = party.contribute(state, asked("momenta", 2, mean), RANDOM)
    assert momenta.size == mean.size


def test_few_rows_are_moved_as_far_in_all_by_the_bilevel_rounds_as_many():
    objective, _ = labelled(0.3, rows=60)
    wide = settings(upper="private", eta=1.0, local_steps=1, lower_batch=60)
    moves = []
    for warm in (0, 1):
        party = Party(replace(wide, warm_rounds=warm), objective)
        state = party.start(np.ones(60), 0.1 * np.ones(objective.lower_size))
        point = Blocks(state.variables.x, state.variables.y, np.arange(float(objective.lower_size)))
        moved, _ = party._step(point, party.directions(point, 1, 0, RANDOM), 1)
        moves.append(moved.x - point.x)
    np.testing.assert_allclose(moves[1], moves[0] * 60 / USUAL_ROWS)
    assert np.abs(moves[0]).max() > 0


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_rows_in_any_unit_are_learned_in_warm_rounds(unit):
    objective, is_wrong = labelled(0.3)
    checked = unit * objective.validation_features
    scaled = replace(objective, features=unit * objective.features, validation_features=checked)
    _, x = warmed(scaled)
    assert np.isfinite(x).all()
    assert np.mean(x[is_wrong]) < np.mean(x[~is_wrong]) - 1


def test_a_run_that_ends_within_its_warm_rounds_has_weights_of_its_model_and_no_velocity():
    objective, is_wrong = labelled(0.3)
    objective = replace(objective, wrong=is_wrong)
    party = Party(settings(gamma=0.5, local_steps=5, upper="private", warm_rounds=60), objective)
    state, mean = party.start(np.zeros(objective.upper_size), np.zeros(objective.lower_size)), None
    for k in range(30):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
    _, measured = party.contribute(state, asked("evaluate", 30, mean), RANDOM)
    assert Measures(*measured).auc > 0.9
    ended, _ = party.contribute(state, asked("finish", 30, mean), RANDOM)
    np.testing.assert_array_equal(ended.variables.x, objective.warm_weights(ended.variables.y))
    assert not ended.variables.u.any()


def test_the_velocity_of_warm_rounds_is_no_u_of_bilevel_ones():
    objective, _ = labelled(0.3)
    party = Party(settings(upper="private", warm_rounds=2, tau=1e-9), objective)
    state, mean = party.start(np.zeros(objective.upper_size), np.zeros(objective.lower_size)), None
    for k in range(2):
        state, mean = party.contribute(state, asked("variables", k, mean), RANDOM)
    assert np.abs(state.variables.u).max() > 1e-3
    state, _ = party.contribute(state, asked("variables", 2, mean), RANDOM)
    assert np.abs(state.variables.u).max() < 1e-6


def test_warm_rounds_are_for_data_cleaning():
    party, state = started(warm_rounds=1, upper="private")
    with pytest.raises(InvalidSettings, match="warm_rounds"):
        party.contribute(state, asked("variables", 0), RANDOM)
