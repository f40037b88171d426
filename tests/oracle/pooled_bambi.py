"""Slow, obvious BAMBI on pooled data: all by torch autograd, nothing shared with the product but specs and streams."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parley.numerics.streams import batch, directions, stream
from parley.party.bambi.models import build_model
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets, divide


@dataclass
class Pooled:
    """The whole federation in one process, with every party's features side by side."""

    settings: BambiSpec
    features: list[Tensor]
    target: Tensor
    rows: RowSets
    seed: int
    embed: list  # of callables (x, a) -> s
    x: list[Tensor]
    y: list[Tensor]

    def data_loss(self, x, y, rows):
        h = sum(self.embed[m](x[m], a[rows]) @ y[m] for m, a in enumerate(self.features))
        target = self.target[rows]
        if self.settings.loss == "softmax":
            return -(target * torch.log_softmax(h, dim=1)).sum(dim=1).mean()
        if self.settings.loss == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(h, target)
        return 0.5 * (h - target).square().sum(dim=1).mean()

    def penalty(self, x, y):
        if self.settings.problem != "hyper_parameters":
            return sum(self.settings.regularisation * block.square().sum() for block in y)
        return sum((torch.exp(c).unsqueeze(-1) * block.square()).sum() for c, block in zip(x, y, strict=True))

    def g(self, x, y, rows):
        return self.data_loss(x, y, rows) + self.penalty(x, y)

    def lower_rows(self, k, t):
        t = 0 if self.settings.lower.solver == "newton" else t
        return batch(self.seed, "lower", k, t, self.rows.lower, self.settings.lower.batch or len(self.rows.lower))

    def upper_rows(self, k):
        return batch(self.seed, "upper", k, 0, self.rows.upper, self.settings.upper.batch or len(self.rows.upper))

    def descend(self, x, k, y):
        y = [block.clone() for block in y]
        for t in range(self.settings.lower.steps):
            leaves = [block.detach().requires_grad_() for block in y]
            gradients = torch.autograd.grad(self.g(x, leaves, self.lower_rows(k, t)), leaves)
            step = self.settings.lower.optimiser.step
            y = [block - step * gradient for block, gradient in zip(y, gradients, strict=True)]
        return y

    def upper_gradients(self, y, k):
        """Direct ∇_x f and ∇_y f."""
        x = [block.detach().requires_grad_() for block in self.x]
        y = [block.detach().requires_grad_() for block in y]
        f = self.data_loss(x, y, self.upper_rows(k))
        gradients = torch.autograd.grad(f, [*x, *y], allow_unused=True, materialize_grads=True)
        return gradients[: len(x)], gradients[len(x) :]

    def zeroth_order(self, k, y, local):
        settings = self.settings.zeroth_order
        sizes = [block.numel() for block in self.x]
        u = torch.from_numpy(directions(self.seed, k, settings.directions, sum(sizes), settings.kind)).to(self.x[0])
        copies = []
        for row in u:
            moved = [block + settings.smoothing * part for block, part in zip(self.x, row.split(sizes), strict=True)]
            copies.append(self.descend(moved, k, y))
        base = self.descend(self.x, k, y)
        direct, weight = self.upper_gradients(base, k)
        terms = [torch.zeros_like(block) for block in self.x]
        for row, copy in zip(u, copies, strict=True):
            own = [((c - b) * w).sum() / settings.smoothing for c, b, w in zip(copy, base, weight, strict=True)]
            for m, part in enumerate(row.split(sizes)):
                terms[m] = terms[m] + (own[m] if local else sum(own)) * part / len(u)
        if settings.jacobian_clip is not None and self.settings.problem == "hyper_representation":
            longest = [settings.jacobian_clip * d.norm() for d in direct]
            terms = [t * min(1.0, float(c / t.norm())) for t, c in zip(terms, longest, strict=True)]
        return base, [d + t for d, t in zip(direct, terms, strict=True)]

    def solve_lower(self, k, y):
        """The exact lower solution by dense Newton steps."""
        flat = torch.cat([block.reshape(-1) for block in y])
        for _ in range(50):
            g = lambda v: self.g(self.x, self._blocks(v), self.lower_rows(k, 0))  # noqa: E731
            gradient = torch.autograd.functional.jacobian(g, flat)
            hessian = torch.autograd.functional.hessian(g, flat)
            step = torch.linalg.solve(hessian, gradient)
            length = 1.0
            while g(flat - length * step) > g(flat) and length > 1e-9:
                length /= 2
            flat = flat - length * step
        return self._blocks(flat)

    def implicit(self, k, y, t=0):
        """Dense implicit differentiation at y: direct − ∂²g/∂x∂y (∂²g/∂y²)⁻¹ ∇_y f."""
        direct, weight = self.upper_gradients(y, k)
        flat_y = torch.cat([block.reshape(-1) for block in y])
        flat_x = torch.cat(list(self.x))
        sizes = [block.numel() for block in self.x]
        rows = self.lower_rows(k, t)

        def g(x, v):
            return self.g(x.split(sizes), self._blocks(v), rows)

        hessian = torch.autograd.functional.hessian(lambda v: g(flat_x, v), flat_y)
        v = torch.linalg.solve(hessian, torch.cat([block.reshape(-1) for block in weight]))
        leaf_x, leaf_y = flat_x.clone().requires_grad_(), flat_y.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(g(leaf_x, leaf_y), leaf_y, create_graph=True)
        (cross,) = torch.autograd.grad((gradient * v).sum(), leaf_x)
        return [d - c for d, c in zip(direct, cross.split(sizes), strict=True)]

    def _blocks(self, flat):
        parts = flat.split([block.numel() for block in self.y])
        return [part.reshape(block.shape) for part, block in zip(parts, self.y, strict=True)]


def trained(spec, features, classes):
    """x and y of every party after the steps of a spec, with every party's features side by side.

    A network is as the product draws it: an MLP with one hidden layer of 4, tanh and 3 outputs.
    """
    settings = spec.train
    features = [torch.from_numpy(np.asarray(part, dtype=np.float64)) for part in features]
    target = np.eye(2)[classes] if settings.loss == "softmax" else np.asarray(classes)[:, None].astype(float)
    rows = divide(spec.split, len(classes), stream(spec.seed, "split"))
    models, x, embeds = [], [], []
    for m, a in enumerate(features):
        if settings.problem == "hyper_parameters":
            x.append(torch.full((a.shape[1],), np.log(settings.regularisation), dtype=torch.float64))
            embeds.append(lambda x, a: a)
            continue
        model = build_model("mlp", a.shape[1], 3, (4,), "tanh", dtype=torch.float64)
        models.append(model)
        x.append(model.initial(stream(spec.seed, f"x/{m}")))
        embeds.append(model.apply)
    outputs = target.shape[1]
    widths = [a.shape[1] if settings.problem == "hyper_parameters" else 3 for a in features]
    y = [torch.zeros((width, outputs), dtype=torch.float64) for width in widths]
    pooled = Pooled(settings, features, torch.from_numpy(target), rows, spec.seed, embeds, x, y)
    for k in range(1, settings.upper.steps + 1):
        if settings.hypergradient == "implicit":
            y = pooled.solve_lower(k, pooled.y)
            hypergradient = pooled.implicit(k, y)
        else:
            y, hypergradient = pooled.zeroth_order(k, pooled.y, settings.hypergradient.endswith("local"))
        step = settings.upper.optimiser.step
        pooled.x = [block - step * gradient for block, gradient in zip(pooled.x, hypergradient, strict=True)]
        pooled.y = y
    named = [model.state_dict(block) for model, block in zip(models, pooled.x, strict=False)]
    return named or [{"coefficients": block} for block in pooled.x], pooled.y


def relative_error(ours, exact):
    ours, exact = np.concatenate([np.ravel(v) for v in ours]), np.concatenate([np.ravel(v) for v in exact])
    return float(np.linalg.norm(ours - exact) / np.linalg.norm(exact))


def cosine(ours, exact):
    ours, exact = np.concatenate([np.ravel(v) for v in ours]), np.concatenate([np.ravel(v) for v in exact])
    return float(ours @ exact / np.linalg.norm(ours) / np.linalg.norm(exact))
