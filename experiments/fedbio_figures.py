"""fedbio-figures: figures 1 to 3 of the FedBiO paper, with its network of three layers, and the speed-up in clients.

Rows and noise are those of `fedbio_cleaning` (MNIST, ten clients, checked rows of one class each); the model has two
hidden layers and all methods start from the same draw of it, as the paper's do. Every method gets the same number of
communication rounds: one of FedBiO is a sum of vectors, of FedBiOAcc two, and a baseline that estimates one
hyper-gradient by several sums takes fewer upper steps for it.

| case | shows |
|---|---|
| Figure 1, METHOD, rho=R | validation error after some rounds, and the test error at the end |
| Figure 2, S of 10 clients, rho=R | FedBiOAcc with S clients drawn for each round |
| Figure 3, I=I, rho=R | FedBiOAcc with I local steps |
| speed-up, S clients | rounds to a validation error, softmax regression |

Baselines, each reduced to what tells it from the others: FedNest, CommFedBiO (FedNest's sums, compressed, with error
feedback), FedMBO (each Hessian product by one client that is drawn), Local-BSGVR (momenta, but every client's own
hyper-gradient: FedBiOAcc whose u is not averaged), FedAvg on all rows. SimFBO steps the three variables at once by
averaged increments, which with as many local steps at each client is FedBiO itself. AggITD is not made; figures 4 and 5
(Omniglot) are `fedbio-omniglot`, and figure 6 needs MiniImageNet, which is not at hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from parley.coordinator.fedbio import rounds as coordinator
from parley.experiments.fedbio_cleaning import (
    CERTAIN,
    FEDBIO,
    FEDBIO_ACC,
    FEDNEST,
    PARTIES,
    SEED,
    TRAINING_ROWS,
    VALIDATION_TARGET,
    Client,
    Digits,
    MissingData,
    clean,
    clients,
    load_digits,
)
from parley.experiments.fedbio_parties import Given, train
from parley.experiments.horizontal_baselines import NestSettings, fedavg, fednest
from parley.numerics.storm import Schedule, Vector
from parley.numerics.streams import stream
from parley.party.fedbio import steps as party
from parley.party.fedbio.objectives import initial_network

SPEED_UP_NOISE = 0.95
HIDDEN = (64, 32)
"""Three fully connected layers."""
NETWORK_ACC = replace(FEDBIO_ACC, gamma=0.1, tau=0.01, schedule=Schedule(1.0), c_nu=0.2, c_omega=0.2, c_u=0.2)
NETWORK_FEDBIO = replace(FEDBIO, eta=200.0, gamma=0.1, tau=0.01)
NETWORK_NEST = replace(FEDNEST, eta=200.0, gamma=0.1, tau=0.01)


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: int
    rounds: int
    noise: tuple[float, ...]
    marks: tuple[int, ...]
    """Rounds after which the validation error is written down."""
    sampled: tuple[int, ...] = (2, 5, 10)
    local_steps: tuple[int, ...] = (1, 5, 10)


QUICK = Scale(500, 40, (0.4,), (10, 20, 40), sampled=(2, 10), local_steps=(1, 5, 10))
FULL = Scale(TRAINING_ROWS, 300, (0.1, 0.4, 0.8, 0.95), (10, 30, 100, 200, 300))


def run(quick: bool, data: Path | None = None, seed: int = SEED) -> list[dict[str, object]]:
    """The rows of figures 1 to 3, and of the speed-up."""
    if data is None:
        raise MissingData("say where the MNIST IDX files are: --data DIR, with DIR/mnist or the files in DIR")
    scale, digits = (QUICK if quick else FULL), load_digits(data)
    rows: list[dict[str, object]] = []
    for rho in scale.noise:
        figure = Figures(clients(digits, rho, seed, scale.rows), digits, scale, seed)
        methods = dict(figure.methods())
        for method, found in methods.items():
            rows += _rows(f"Figure 1, {method}, rho={rho}", found)
        for sampled in scale.sampled:
            all_of_them = sampled == PARTIES
            found = methods["FedBiOAcc"] if all_of_them else figure.family(NETWORK_ACC, sampled=sampled)
            rows += _rows(f"Figure 2, {sampled} of {PARTIES} clients, rho={rho}", found)
        for steps in scale.local_steps:
            settings = replace(NETWORK_ACC, local_steps=steps)
            found = methods["FedBiOAcc"] if settings == NETWORK_ACC else figure.family(settings)
            rows += _rows(f"Figure 3, I={steps}, rho={rho}", found)
    linear = clients(digits, SPEED_UP_NOISE, seed)
    return rows + [
        {
            "case": f"speed-up, {sampled} clients",
            "metric": f"rounds to validation error {VALIDATION_TARGET}",
            "ours": clean(linear, digits, FEDBIO_ACC, sampled=sampled, stop_at_target=True, seed=seed).rounds_to_target,
            "paper": None,
        }
        for sampled in scale.sampled
    ]


Curve = dict[str, float]
"""Figures by metric."""


@dataclass(frozen=True)
class Figures:
    """Every method on the rows of one share of wrong labels."""

    parts: Sequence[Client]
    digits: Digits
    scale: Scale
    seed: int

    @property
    def tasks(self) -> list[Given]:
        """The clients' objectives with the network, from the same start."""
        objectives = [replace(part.objective, hidden=HIDDEN) for part in self.parts]
        y = initial_network(objectives[0].widths, stream(self.seed, "fedbio/initial"))
        return [Given(each, np.zeros(each.upper_size), y) for each in objectives]

    def methods(self) -> list[tuple[str, Curve]]:
        """Figure 1."""
        nests = {
            "FedNest": NETWORK_NEST,
            "CommFedBiO": replace(NETWORK_NEST, share_sent=0.1),
            "FedMBO": replace(NETWORK_NEST, one_client=True),
        }
        return [
            ("FedBiO", self.family(NETWORK_FEDBIO)),
            ("FedBiOAcc", self.family(NETWORK_ACC)),
            ("Local-BSGVR", self.family(replace(NETWORK_ACC, average_u=False))),
            *((name, self.nested(settings)) for name, settings in nests.items()),
            ("FedAvg", self.averaged()),
        ]

    def family(self, settings: party.Settings, sampled: int | None = None) -> Curve:
        """A member of the FedBiO family; one with momenta takes two sums for a round, hence half as many rounds."""
        each = 2 if settings.accelerated else 1
        observe, curve = self._observer(each)
        size = self.tasks[0].y.size

        def watch(k: int, averages: coordinator.Averages) -> bool:
            if averages.variables is not None:
                observe(k, averages.variables[:size])
            return False

        train(self.tasks, settings, self.scale.rounds // each, sampled=sampled, seed=self.seed, until=watch)
        return curve

    def nested(self, settings: NestSettings) -> Curve:
        """A baseline of several sums for each hyper-gradient."""
        observe, curve = self._observer(1)
        tasks = self.tasks
        objectives = [task.objective for task in tasks]
        fednest(
            objectives,
            [task.x for task in tasks],
            tasks[0].y,
            settings,
            rounds=self.scale.rounds,
            seed=self.seed,
            observe=observe,
        )
        return curve

    def averaged(self) -> Curve:
        """FedAvg on all rows."""
        observe, curve = self._observer(1)
        tasks = self.tasks
        fedavg(
            [task.objective for task in tasks],
            [np.full(task.x.size, CERTAIN) for task in tasks],
            tasks[0].y,
            rounds=self.scale.rounds,
            local_steps=NETWORK_ACC.local_steps,
            gamma=NETWORK_ACC.gamma,
            seed=self.seed,
            observe=lambda k, y: observe(k + 1, y),
        )
        return curve

    def _observer(self, each: int) -> tuple[Callable[[int, Vector], None], Curve]:
        """What writes the errors down: the model in force when `marks` sums were spent."""
        curve: Curve = {}
        judged = [replace(part.objective, hidden=HIDDEN) for part in self.parts]

        def observe(k: int, y: Vector) -> None:
            spent = k * each
            due = [mark for mark in self.scale.marks if spent >= mark and _metric(mark) not in curve]
            if not due:
                return
            measures = [objective.measure(np.empty(0), y) for objective in judged]
            error = sum(measure.errors for measure in measures) / sum(measure.rows for measure in measures)
            curve.update({_metric(mark): error for mark in due})
            wrong = judged[0].predict(y, self.digits.test) != self.digits.test_labels
            curve["test error"] = float(np.mean(wrong))

        return observe, curve


def _metric(mark: int) -> str:
    return f"validation error after {mark} rounds"


def _rows(case: str, curve: Curve) -> list[dict[str, object]]:
    return [{"case": case, "metric": metric, "ours": value, "paper": None} for metric, value in curve.items()]


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Validation error against rounds: a row of panels for each figure, a panel for each share of wrong labels."""
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        metric = str(row["metric"])
        if not metric.startswith("validation error after"):
            continue
        figure, method, rho = str(row["case"]).split(", ")
        point = float(metric.split()[3]), float(str(row["ours"]))
        lines.setdefault((figure, rho), {}).setdefault(method, []).append(point)
    figures, noises = (list(dict.fromkeys(key[i] for key in lines)) for i in (0, 1))
    drawing = Figure(figsize=(4.2 * len(noises), 3.2 * len(figures)), layout="constrained")
    panels = drawing.subplots(len(figures), len(noises), squeeze=False)
    for (figure, rho), methods in lines.items():
        axes = panels[figures.index(figure)][noises.index(rho)]
        for method, points in methods.items():
            axes.plot(*zip(*sorted(points), strict=True), marker=".", label=method)
        axes.set(title=f"{figure}, ρ = {rho.removeprefix('rho=')}", xlabel="rounds", ylabel="validation error")
        if rho == noises[0]:
            axes.legend(fontsize="small")
    drawing.savefig(path)
