"""hgp-tables: Table 2 of the HGP paper in its own layout, on EMNIST: mean and bottom-decile accuracy of the clients.

Methods with one model for each client; `hgp-mixtures` has those with three (FedEM, HGP-MTL), which take as long again.

Rows, networks and the model (one hidden layer on images pooled to 14×14) are those of `hgp_personalisation`; the
clients are trained as stacked arrays (`batched_clients`), which is what makes a hundred of them, fully connected
too, possible on two cores. Every method gets the same number of gradient steps for each client, in stretches of which
the best by validation accuracy is reported. Methods of the paper's server run on FC, FedEM on FixU too, as there.

| method | between two stretches |
|---|---|
| SGP (on FC: FedAvg), Local | nothing |
| FedProx | nothing; averages after every 5 local steps, μ = 0.01 |
| FedAvg+ | nothing; each client tunes FedAvg's model on its own rows, for as many steps as validation rows like best |
| pFedMe | nothing; personal models within (μ/2)‖θ − w‖², 5 steps for each average |
| FedEM | the weights of three components are their mean posteriors |
| HGP-MTL, HGP-PL | a step of Adam on λ along HGP's hyper-gradient, M = S = 10 |

differs from the paper: Clustered-FL is not made. Rows are from the test part of EMNIST ByClass, of which 81 425 are as
many as the paper's 10 % of the whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parley.experiments.batched_clients import (
    Averager,
    Clients,
    Problem,
    Steps,
    averager,
    hyper_gradient,
    posterior_weights,
    train_locally_averaged,
    train_moreau,
    train_sgp,
)
from parley.experiments.hgp_personalisation import (
    CLASSES,
    COMPONENTS,
    HIDDEN,
    MIXTURE_RATE,
    MODEL_SIZE,
    PAPER,
    PIXELS,
    SHARED_RATE,
    WEIGHT_DECAY,
    Accuracy,
    MissingData,
    Party,
    Row,
    Scale,
    initial_model,
    load_emnist,
    mixing_of,
    split_parties,
)

NETWORKS = ("FC", "FixU", "RandU", "RandD")
DECENTRALISED = ("SGP", "HGP-MTL", "HGP-PL")
Cells = Mapping[str, tuple[str, ...]]
"""Methods by network."""
ONE_MODEL: Cells = {
    "FC": ("SGP", "FedProx", "Local", "FedAvg+", "pFedMe", "HGP-PL"),
    "FixU": ("SGP", "Local", "HGP-PL"),
    "RandU": ("SGP", "Local", "HGP-PL"),
    "RandD": ("SGP", "Local", "HGP-PL"),
}
MIXTURES: Cells = {
    "FC": ("FedEM", "HGP-MTL"),
    "FixU": ("FedEM", "HGP-MTL"),
    "RandU": ("HGP-MTL",),
    "RandD": ("HGP-MTL",),
}
"""Together the cells of the paper's table that have a figure, without Clustered-FL."""
SERVER = {
    ("FedProx", "FC"): (0.829, 0.745), ("FedAvg+", "FC"): (0.832, 0.743), ("pFedMe", "FC"): (0.851, 0.790),
    ("FedEM", "FC"): (0.840, 0.754), ("FedEM", "FixU"): (0.839, 0.757),
}  # fmt: skip
QUICK = Scale(parties=12, rows=9_000, train_steps=80, outer_steps=3, networks=NETWORKS)
FULL = Scale(parties=100, rows=81_425, train_steps=200, outer_steps=5, networks=NETWORKS)
LOCAL_STEPS = 5
LOCAL_RATE, AVERAGED_RATE, PERSONAL_RATE, TUNING_RATE = 0.3, 0.6, 0.3, 0.1
"""Of Local, of FedProx and FedAvg+, of pFedMe: the best of 0.1, 0.3 and 0.6 by validation accuracy at the quick scale
(Local and pFedMe: of 0.1 and 0.3); the last was not chosen."""
FEDPROX_NEAR, PFEDME_NEAR, PFEDME_SHARED_RATE = 0.01, 1.0, 1.0
"""μ as the paper chose it; pFedMe's w moves to the mean of the personal models."""
TUNING = (1, 5, 10, 20, 50)
"""Numbers of steps that FedAvg+ chooses from."""
OUTER_RATE, ETA, ROUNDS, PUSH_STEPS = 0.1, 0.1, 10, 10


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """A row for each method, network and metric."""
    return measured(ONE_MODEL, quick=quick, data=data, seed=seed)


def measured(cells: Cells, *, quick: bool, data: Path | None, seed: int) -> list[Row]:
    """The rows of some cells."""
    if data is None:
        raise MissingData("Table 2 of HGP needs EMNIST: give the folder that holds emnist/ with --data.")
    scale = QUICK if quick else FULL
    return table(cells, split_parties(*load_emnist(data), scale, seed=seed), scale, seed)


def table(cells: Cells, parties: Sequence[Party], scale: Scale, seed: int = 0) -> list[Row]:
    """The methods of every network of the scale; what is the same on every network is made once."""
    rows, local = [], None
    for network in scale.networks:
        for method in cells[network]:
            if method != "Local":
                found = Method(parties, scale, network, seed).accuracy(method)
            else:
                local = found = local or Method(parties, scale, network, seed).accuracy("Local")
            printed = (SERVER | PAPER)[method, network]
            case = f"{method}, {network}"
            print(f"{case}: {found.mean:.4f} / {found.bottom_decile:.4f}", flush=True)
            rows += [
                {"case": case, "metric": "mean accuracy", "ours": found.mean, "paper": printed[0]},
                {"case": case, "metric": "bottom-decile accuracy", "ours": found.bottom_decile, "paper": printed[1]},
            ]
    return rows


@dataclass(frozen=True)
class Fitted:
    """Clients' models and λ after a stretch."""

    x: Tensor
    hyper: Tensor


class Method:
    """The methods on one network."""

    def __init__(self, parties: Sequence[Party], scale: Scale, network: str, seed: int) -> None:
        self._scale, self._seed = scale, seed
        self._training = Clients.of([(p.training.features, p.training.labels) for p in parties])
        self._validation = Clients.of([(p.validation.features, p.validation.labels) for p in parties])
        self._test = Clients.of([(p.test.features, p.test.labels) for p in parties])
        self._network = averager(mixing_of(network, scale.parties, seed=seed))
        self._masks = Problem(self._training, masked, WEIGHT_DECAY, hyper_decay=0.001)
        self._mixtures = Problem(self._training, mixed, WEIGHT_DECAY, hyper_decay=0.01)

    def accuracy(self, method: str) -> Accuracy:
        """On test rows, of the stretch that is best on validation rows."""
        problem = self._mixtures if method in ("HGP-MTL", "FedEM") else self._masks
        ways: dict[str, Callable[[], Iterator[Fitted]]] = {
            "Local": lambda: self._shared(lambda _: None, LOCAL_RATE),
            "SGP": lambda: self._shared(self._network, SHARED_RATE),
            "FedProx": self._fedprox,
            "FedAvg+": self._tuned,
            "pFedMe": self._personal,
            "FedEM": self._posterior,
            "HGP-MTL": lambda: self._hypers(self._mixtures, MIXTURE_RATE),
            "HGP-PL": lambda: self._hypers(self._masks, SHARED_RATE),
        }
        judged = [
            (judge(problem, fitted, self._validation).mean, judge(problem, fitted, self._test))
            for fitted in ways[method]()
        ]
        return max(judged, key=lambda each: each[0])[1]

    def _start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        clients = len(self._training.counts)
        if problem is self._masks:
            return torch.from_numpy(initial_model(0)).expand(clients, -1), torch.zeros(clients, CLASSES)
        models = np.concatenate([initial_model(seed) for seed in range(COMPONENTS)])
        return torch.from_numpy(models).expand(clients, -1), torch.zeros(clients, COMPONENTS)

    def _steps(self, rate: float) -> Steps:
        return Steps(self._scale.train_steps, rate)

    def _stretches(self) -> range:
        return range(self._scale.outer_steps + 1)

    def _shared(self, network: Averager, rate: float) -> Iterator[Fitted]:
        x, hyper = self._start(self._masks)
        for k in self._stretches():
            x = train_sgp(self._masks, x, hyper, self._steps(rate), network, seed=self._seed, k=k, first=first_step(k))
            yield Fitted(x, hyper)

    def _fedprox(self) -> Iterator[Fitted]:
        x, hyper = self._start(self._masks)
        for k in self._stretches():
            x = train_locally_averaged(
                self._masks, x, hyper, self._steps(AVERAGED_RATE),
                local_steps=LOCAL_STEPS, near=FEDPROX_NEAR, seed=self._seed, k=k,
            )  # fmt: skip
            yield Fitted(x, hyper)

    def _tuned(self) -> Iterator[Fitted]:
        """As many steps as the others in all: the longest tuning is taken off FedAvg's last stretch."""
        x, hyper = self._start(self._masks)
        for k in self._stretches():
            steps = self._steps(AVERAGED_RATE)
            if k == self._scale.outer_steps:
                steps = replace(steps, count=max(1, steps.count - TUNING[-1]))
            x = train_locally_averaged(
                self._masks, x, hyper, steps, local_steps=LOCAL_STEPS, near=0.0, seed=self._seed, k=k
            )
        yield Fitted(x, hyper)
        for count in TUNING:
            steps = Steps(count, TUNING_RATE, decay_at=())
            tuned = train_sgp(self._masks, x, hyper, steps, lambda _: None, seed=self._seed, k=len(self._stretches()))
            yield Fitted(tuned, hyper)

    def _personal(self) -> Iterator[Fitted]:
        x, hyper = self._start(self._masks)
        shared, personal = x, x
        for k in self._stretches():
            shared, personal = train_moreau(
                self._masks, shared, personal, hyper, self._steps(PERSONAL_RATE), near=PFEDME_NEAR,
                inner_steps=LOCAL_STEPS, shared_rate=PFEDME_SHARED_RATE, seed=self._seed, k=k,
            )  # fmt: skip
            yield Fitted(personal, hyper)

    def _posterior(self) -> Iterator[Fitted]:
        x, hyper = self._start(self._mixtures)
        for k in self._stretches():
            x = self._trained(self._mixtures, x, hyper, MIXTURE_RATE, k)
            hyper = posterior_weights(self._mixtures, x, hyper, component_scores)
            yield Fitted(x, hyper)

    def _hypers(self, problem: Problem, rate: float) -> Iterator[Fitted]:
        x, hyper = self._start(problem)
        hyper = hyper.clone().requires_grad_()
        adam = torch.optim.Adam([hyper], lr=OUTER_RATE)
        for k in self._stretches():
            x = self._trained(problem, x, hyper.detach(), rate, k)
            yield Fitted(x, hyper.detach().clone())
            if k < self._scale.outer_steps:
                hyper.grad = hyper_gradient(
                    problem, x, hyper.detach(), self._network,
                    rounds=ROUNDS, push_steps=PUSH_STEPS, eta=ETA, first=first_step(k) + 5_000,
                )  # fmt: skip
                adam.step()

    def _trained(self, problem: Problem, x: Tensor, hyper: Tensor, rate: float, k: int) -> Tensor:
        steps = self._steps(rate)
        return train_sgp(problem, x, hyper, steps, self._network, seed=self._seed, k=k, first=first_step(k))


def first_step(k: int) -> int:
    """Where stretch k begins in the network's schedule."""
    return 10_000 * k


def judge(problem: Problem, fitted: Fitted, clients: Clients) -> Accuracy:
    """Each client's own model on its own rows: the mean weighted by rows, and the tenth percentile."""
    with torch.no_grad():
        guess = problem.logits(fitted.x, fitted.hyper, clients.features).argmax(dim=2)
    right = ((guess == clients.labels) & clients.present).sum(dim=1).double()
    there = clients.counts > 0
    shares = (right / clients.counts.clamp(min=1))[there].numpy()
    return Accuracy(
        float(right.sum() / clients.counts.sum()),
        float(np.quantile(shares, 0.1)),
    )


def network_scores(x: Tensor, inputs: Tensor) -> Tensor:
    """Each client's own network of one hidden layer: `hgp_personalisation.network`, stacked."""
    w1, b1, w2, b2 = torch.split(x, [PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES], dim=1)
    hidden = torch.relu(torch.baddbmm(b1[:, None], inputs, w1.reshape(-1, PIXELS, HIDDEN)))
    return torch.baddbmm(b2[:, None], hidden, w2.reshape(-1, HIDDEN, CLASSES))


def masked(x: Tensor, hyper: Tensor, inputs: Tensor) -> Tensor:
    """HGP-PL; λ = 0 is the plain model."""
    return network_scores(x, inputs) * (CLASSES * torch.softmax(hyper, dim=1))[:, None]


def component_scores(x: Tensor, inputs: Tensor) -> Tensor:
    """Log-probabilities of each of the components: (n, components, rows, classes)."""
    parts = x.reshape(len(x), COMPONENTS, MODEL_SIZE).unbind(dim=1)
    return torch.stack([functional.log_softmax(network_scores(part, inputs), dim=2) for part in parts], dim=1)


def mixed(x: Tensor, hyper: Tensor, inputs: Tensor) -> Tensor:
    """HGP-MTL and FedEM: log-probabilities of the mixture."""
    return torch.logsumexp(component_scores(x, inputs) + functional.log_softmax(hyper, dim=1)[:, :, None, None], dim=1)


def plot(rows: list[Row], path: Path) -> None:
    """A panel for each network: ours as bars with the bottom decile marked, the paper's mean beside it."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(str(row["case"]) for row in rows))
    networks = list(dict.fromkeys(case.split(", ")[1] for case in cases))
    found = {(str(row["case"]), row["metric"]): row for row in rows}
    figure = Figure(figsize=(3.4 * len(networks), 3.8), layout="constrained")
    panels = figure.subplots(1, len(networks), sharex=True, squeeze=False)[0]
    for axes, network in zip(panels, networks, strict=True):
        own = [case for case in cases if case.endswith(f", {network}")]
        names = [case.split(", ")[0] for case in own]
        means = [found[case, "mean accuracy"] for case in own]
        axes.barh(names, [row["ours"] for row in means], color="#4c78a8", label="mean")
        axes.plot(
            [found[case, "bottom-decile accuracy"]["ours"] for case in own], names, "k|", markersize=11, label="decile"
        )
        axes.plot([row["paper"] for row in means], names, "o", color="#f58518", markersize=5, label="paper's mean")
        axes.set(title=network, xlabel="test accuracy", xlim=(0.4, 0.95))
        axes.invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path)
