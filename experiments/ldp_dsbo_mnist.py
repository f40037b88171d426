"""LDP-DSBO tunes the regularisation of softmax regression on MNIST (Figures 2 and 5 to 8 of its paper).

Ten agents, w_ii = −0.6, T = 100, 50 images a step. Agent i has a share q of the images of class i (half, unless a case
says otherwise) and an equal part of what the other agents left of theirs. Training and validation images are the
same, as in the paper, and come in the same order: one image's ε covers its part in both. Test accuracy and loss are
means over agents on the 10 000 test images (2000 in the quick setting); training loss is on the agents' own images.

`LDP-DSBO private` has rows, boxes, steps and noise for which ε means something. Its twin through services is a
federation of processes over mutual TLS, with the noise of the parties' own keys. Everything else is in one process.

differs from the paper: images pooled to 14×14; history gradients, so that one pass over the images is the whole
run (the paper draws mini-batches over six epochs); step sizes are the printed ones and, in the case `tuned`, those
times the factor that does best on the agents' own images; MA-DSBO's step is chosen in the same way. Figures 7 and 8
have the tuned steps. GBDSBO, which fails to train in the paper, is not made: it would send matrices of 1960² numbers.
VRDSBO (Figure 6) is not made either. The paper prints no figures, only curves.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from parley.experiments import ldp_dsbo_agents
from parley.experiments.bambi_mnist import mnist_folder
from parley.experiments.decentralised_baselines import MaDsbo, run_ma_dsbo
from parley.experiments.fedbio_cleaning import Digits, load_digits
from parley.local import LocalFederation
from parley.numerics.networks import NetworkKind, NetworkPlan, gossip_weights, links
from parley.numerics.streams import stream
from parley.party.ldp_dsbo import softmax
from parley.party.ldp_dsbo.objectives import Bounds
from parley.party.ldp_dsbo.role import settings_of
from parley.party.ldp_dsbo.softmax import SoftmaxBounds, SoftmaxRecords
from parley.party.ldp_dsbo.steps import Agent, LdpDsbo, privacy_plan
from parley.privacy.ldp_accounting import Decay, Guarantee, Schedules, guarantee, laplace_scales
from parley.privacy.noise import KeyedNoise
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.parsing import parse_spec

Matrix = NDArray[np.float64]
Row = dict[str, Any]

AGENTS, CLASSES, PIXELS = 10, 10, 196
NOISY_STEPS = Schedules(Decay(1.2, 0.95), Decay(1.2, 0.87), Decay(1.2, 0.75))
"""Appendix A.1."""
CLEAR_STEPS = Schedules(Decay(1.2, 0.55), Decay(1.2, 0.50), Decay(1.2, 0.45))
"""Appendix A.2.1, without noise."""
START = math.log(2.0 / (CLASSES * PIXELS))
"""Where the paper's λ is 0."""
PRINTED = Bounds(
    row_l1=150.0, row_max=1.0, x_low=START - 5.0, x_high=START + 5.0, y_max=100.0, z_max=100.0, initial=START
)
"""Wide enough never to bind; what the printed experiment's constants come to when they are declared."""
BASELINE_STEP_SIZES = (0.03, 0.1, 0.3, 1.0)
NETWORKS = ("ring", "2-regular", "3-regular", "5-regular", "8-regular")
SHARES = (0.3, 0.5, 1.0)


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: int
    """Training images of all agents."""
    test_rows: int
    steps: int
    batch: int
    factors: tuple[float, ...]
    """Of the printed step sizes, to choose from."""
    networks: tuple[str, ...]
    shares: tuple[float, ...]
    private_steps: int
    private_batch: int


FULL = Scale(60_000, 10_000, 100, 50, (1.0, 8.0, 20.0), NETWORKS, SHARES, 18, 300)
QUICK = Scale(10_000, 2_000, 15, 10, (1.0, 8.0), ("ring",), (0.5,), 10, 90)


def private_spec(scale: Scale, seed: int) -> str:
    """The run with a real ε, for parties as for this process."""
    train = {
        "algorithm": "ldp_dsbo",
        "classes": [str(label) for label in range(CLASSES)],
        "epsilon": 100,
        "iterations": scale.private_steps,
        "batch": scale.private_batch,
        "weight": 0.3,
        "task": {"kind": "hyper_parameters", "initial": -8.0},
        "step_sizes": {
            "x": {"initial": 0.01, "rate": 0.95},
            "y": {"initial": 60.0, "rate": 0.87},
            "z": {"initial": 0.5, "rate": 0.75},
        },
        "noise": {"sigma": 1.0},
        "bounds": {"row_l1": 1.0, "row_max": 0.02, "x_low": -12.0, "x_high": -8.0, "y_max": 200.0, "z_max": 1.0},
    }
    content = {
        "name": "ldp-mnist",
        "seed": seed,
        "dtype": "float64",
        "table": "images",
        "parties": [f"agent-{i}" for i in range(AGENTS)],
        "split": {"lower": 1.0, "upper": "lower", "test": 0},
        "train": train,
        "checkpoint_every": 0,
        "wait_seconds": 600,
    }
    return yaml.safe_dump(content)


@dataclass(frozen=True)
class Task:
    """The agents' images in the order in which they arrive, and those that judge."""

    features: Sequence[Matrix]
    labels: Sequence[NDArray[np.int64]]
    test_features: Matrix
    test_labels: NDArray[np.int64]

    def agents(self, bounds: SoftmaxBounds) -> list[Agent]:
        """The agents under these bounds."""
        pairs = zip(self.features, self.labels, strict=True)
        records = [softmax.admit(features, labels, bounds) for features, labels in pairs]
        return [Agent(i, each, each) for i, each in enumerate(records)]


@dataclass(frozen=True)
class Measured:
    """What a run's models are worth, and what they cost."""

    accuracies: Matrix
    """Of each agent's model on the test images."""
    test_loss: float
    training_loss: float
    spent: Guarantee | None
    """The largest of any agent, per image; None where nothing is accounted for."""


def make_task(digits: Digits, scale: Scale, share: float, seed: int) -> Task:
    """Deal the images: `share` of class i to agent i, what is left of each class in equal parts to the others."""
    draw = stream(seed, "ldp.mnist.deal")
    chosen = draw.permutation(len(digits.training_labels))[: scale.rows]
    owner = np.empty(len(chosen), dtype=np.int64)
    for label in range(CLASSES):
        rows = np.flatnonzero(digits.training_labels[chosen] == label)
        own = round(share * len(rows))
        others = np.delete(np.arange(AGENTS), label)
        owner[rows] = np.concatenate([np.full(own, label), np.resize(others, len(rows) - own)])
    parts = [chosen[owner == i] for i in range(AGENTS)]
    return Task(
        [digits.training[part] for part in parts],
        [digits.training_labels[part] for part in parts],
        digits.test[: scale.test_rows],
        digits.test_labels[: scale.test_rows],
    )


def weights_of(network: str, seed: int) -> Matrix:
    """W with w_ii = −0.6 on every network."""
    if network == "ring":
        return gossip_weights(links(NetworkPlan(NetworkKind.RING, size=AGENTS), 0), 0.3)
    degree = int(network.removesuffix("-regular"))
    plan = NetworkPlan(NetworkKind.REGULAR, size=AGENTS, seed=seed, degree=degree)
    return gossip_weights(links(plan, 0), 0.6 / degree)


def scaled(factor: float) -> Schedules:
    """Return the printed step sizes times a factor."""
    return Schedules(
        *(Decay(factor * each.initial, each.rate) for each in (NOISY_STEPS.x, NOISY_STEPS.y, NOISY_STEPS.z))
    )


def printed_settings(scale: Scale, steps: Schedules, *, noise: bool) -> list[LdpDsbo]:
    """Every agent's settings; noise rates 0.8, 0.76 and 0.6 plus 0.01·i as in appendix A.1."""
    made = []
    for shift in 0.01 * np.arange(1, AGENTS + 1):
        scales = laplace_scales(1.0, 0.8 + shift, 0.76 + shift, 0.6 + shift) if noise else None
        made.append(LdpDsbo(steps, scales, SoftmaxBounds(PIXELS, CLASSES, PRINTED), scale.batch))
    return made


def private_settings(scale: Scale, seed: int) -> list[LdpDsbo]:
    """The settings of `private_spec`, as a party reads them."""
    spec = parse_spec(private_spec(scale, seed))
    columns = [str(column) for column in range(PIXELS)]
    return [settings_of(spec.settings(LdpDsboSpec), seed, columns)] * AGENTS


def train(task: Task, settings: Sequence[LdpDsbo], weights: Matrix, steps: int, seed: int) -> Measured:
    """Run LDP-DSBO in this process."""
    bounds = settings[0].bounds
    assert isinstance(bounds, SoftmaxBounds)  # noqa: S101 (every setting here has them)
    # An experiment must repeat, so its keys come from its seed; a party's key comes from the operating system.
    keys = [KeyedNoise(stream(seed, "ldp.key", k=i).bytes(32)) for i in range(AGENTS)]
    federation = ldp_dsbo_agents.Federation(task.agents(bounds), settings, keys, weights, PIXELS)
    states = ldp_dsbo_agents.train(federation, steps)
    return measure(task, bounds, np.stack([state.y for state in states]), worst_guarantee(settings, weights, steps))


def worst_guarantee(settings: Sequence[LdpDsbo], weights: Matrix, steps: int) -> Guarantee | None:
    """Return the largest budget of any agent, per image; None without noise."""
    if settings[0].noise_scales is None:
        return None
    plans = [privacy_plan(each, PIXELS, float(weights[i, i])) for i, each in enumerate(settings)]
    return max((guarantee(plan, steps) for plan in plans), key=lambda each: each.epsilon)


def measure(task: Task, bounds: SoftmaxBounds, models: Matrix, spent: Guarantee | None) -> Measured:
    """Judge the agents' models, one per row."""
    test = softmax.admit(task.test_features, task.test_labels, bounds)
    right = [softmax.scores(bounds, test, y).argmax(axis=1) == test.labels for y in models]
    own = zip(task.agents(bounds), models, strict=True)
    return Measured(
        np.mean(right, axis=1),
        float(np.mean([softmax.mean_loss(bounds, test, y) for y in models])),
        float(np.mean([softmax.mean_loss(bounds, _softmax_records(agent), y) for agent, y in own])),
        spent,
    )


def best(runs: Sequence[Measured]) -> int:
    """The place of the run with the smallest loss on the agents' own images; one that diverged is never the best."""
    losses = [each.training_loss if math.isfinite(each.training_loss) else math.inf for each in runs]
    return int(np.argmin(losses))


def best_ma_dsbo(task: Task, scale: Scale, seed: int, *, noise: bool) -> Measured:
    """MA-DSBO with the best step size of the grid; ten inner steps for each outer one, T communications in all."""
    bounds, weights = SoftmaxBounds(PIXELS, CLASSES, PRINTED), weights_of("ring", seed)
    outer = max(1, scale.steps // 10)
    runs = []
    for step in BASELINE_STEP_SIZES:
        settings = MaDsbo(step, outer=outer, batch_size=scale.batch, noise=noise, seed=seed)
        models = run_ma_dsbo(task.agents(bounds), weights, bounds, PIXELS, settings)
        runs.append(measure(task, bounds, models, None))
    return runs[best(runs)]


def train_by_services(task: Task, scale: Scale, seed: int) -> Measured:
    """Run `private_spec` by ten parties and a coordinator, each a process, and judge the models that parties keep."""
    text, settings = private_spec(scale, seed), private_settings(scale, seed)
    bounds, names = settings[0].bounds, [f"agent-{i}" for i in range(AGENTS)]
    assert isinstance(bounds, SoftmaxBounds)  # noqa: S101 (there are ten classes)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tables = {}
        for name, features, labels in zip(names, task.features, task.labels, strict=True):
            path = folder / f"{name}.npz"
            np.savez(path, x=features, label=labels, ids=np.array([f"{row:06d}" for row in range(len(labels))]))
            tables[name] = {"images": {"path": str(path), "label": "label", "label_path": str(path)}}
        policy = {"epsilon_budget": 100.0}
        with LocalFederation(folder, tables, {}, policy=policy, ready_seconds=300) as local, local.connect() as client:
            run = client.start(text)
            run.result()
            files = [folder / "state" / name / "runs" / run.run_id / "model.safetensors" for name in names]
            models = np.stack([load_file(path)["y"] for path in files])
    return measure(task, bounds, models, worst_guarantee(settings, weights_of("ring", seed), scale.private_steps))


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """Return the rows of the figures."""
    with threadpool_limits(1):  # the agents' products are small: threads would only wait for each other
        return _figures(load_digits(mnist_folder(data)), QUICK if quick else FULL, seed)


def _figures(digits: Digits, scale: Scale, seed: int) -> list[Row]:
    rows: list[Row] = []

    def keep(case: str, measured: Measured) -> None:
        rows.extend(_rows(case, measured))

    half, ring = make_task(digits, scale, 0.5, seed), weights_of("ring", seed)
    noisy = [
        train(half, printed_settings(scale, scaled(factor), noise=True), ring, scale.steps, seed)
        for factor in scale.factors
    ]
    chosen = best(noisy)
    tuned = scaled(scale.factors[chosen])
    keep("LDP-DSBO noise", noisy[0])
    keep("LDP-DSBO noise, tuned", noisy[chosen])
    keep("MA-DSBO noise", best_ma_dsbo(half, scale, seed, noise=True))
    for case, steps in (("LDP-DSBO no noise", NOISY_STEPS), ("LDP-DSBO no noise, A.2.1 steps", CLEAR_STEPS)):
        keep(case, train(half, printed_settings(scale, steps, noise=False), ring, scale.steps, seed))
    keep("MA-DSBO no noise", best_ma_dsbo(half, scale, seed, noise=False))
    settings = printed_settings(scale, tuned, noise=True)
    for network in scale.networks:
        mixed = noisy[chosen] if network == "ring" else None
        keep(f"noise, tuned, {network}", mixed or train(half, settings, weights_of(network, seed), scale.steps, seed))
    for share in scale.shares:
        dealt = None if share == 0.5 else make_task(digits, scale, share, seed)
        found = noisy[chosen] if dealt is None else train(dealt, settings, ring, scale.steps, seed)
        keep(f"noise, tuned, q = {share:.0%}", found)
    private = private_settings(scale, seed)
    keep("LDP-DSBO private", train(half, private, ring, scale.private_steps, seed))
    clear = [replace(each, noise_scales=None) for each in private]
    keep("LDP-DSBO private, no noise", train(half, clear, ring, scale.private_steps, seed))
    keep("LDP-DSBO private, services", train_by_services(half, scale, seed))
    return rows


def _softmax_records(agent: Agent) -> SoftmaxRecords:
    assert isinstance(agent.lower, SoftmaxRecords)  # noqa: S101 (`Task.agents` makes no others)
    return agent.lower


def _rows(case: str, found: Measured) -> list[Row]:
    metrics: dict[str, float | None] = {
        "accuracy": float(found.accuracies.mean()),
        "worst agent accuracy": float(found.accuracies.min()),
        "test loss": found.test_loss,
        "training loss": found.training_loss,
        "epsilon": None if found.spent is None else found.spent.epsilon,
    }
    if found.spent is not None:
        metrics |= {"epsilon at 1e-6": found.spent.approximate_epsilon, "vacuous": float(found.spent.vacuous)}
    return [{"case": case, "metric": metric, "ours": value, "paper": None} for metric, value in metrics.items()]


def plot(rows: list[Row], path: Path) -> None:
    """Draw each case's accuracy as a bar, the worst agent's as a mark, and say what ε it costs."""
    from matplotlib.figure import Figure

    values = {(row["case"], row["metric"]): row["ours"] for row in rows}
    cases = [row["case"] for row in rows if row["metric"] == "accuracy"]
    figure = Figure(figsize=(8, 0.35 * len(cases) + 1.5), layout="constrained")
    axes = figure.subplots()
    axes.barh(cases, [values[case, "accuracy"] for case in cases], color="#4c78a8")
    axes.plot([values[case, "worst agent accuracy"] for case in cases], cases, "k|", markersize=10, label="worst agent")
    for place, case in enumerate(cases):
        axes.text(1.01, place, _spent(values.get((case, "epsilon")), values.get((case, "vacuous"))), va="center")
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("test accuracy; on the right: ε of the whole run")
    axes.invert_yaxis()
    axes.legend(loc="lower left")
    figure.savefig(path)


def _spent(epsilon: float | None, vacuous: float | None) -> str:
    if epsilon is None or math.isnan(epsilon):
        return "–"
    return "vacuous" if vacuous else f"ε = {epsilon:.3g}"
