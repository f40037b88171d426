"""Slow, obvious local rounds on pooled data: autograd of the amplified loss, torch's own Adam, nothing of the roles."""

from itertools import pairwise

import numpy as np
import torch

from parley.numerics.combinations import best_combination
from parley.numerics.losses import Softmax
from parley.numerics.streams import stream
from parley.party.bambi.models import build_model
from parley.protocols.bambi.batches import local_rows
from parley.spec.rows import divide

FAST, SLOW = 0.25, 0.1


class PooledParty:
    """A block's parameters as leaves of autograd, with torch's optimiser."""

    def __init__(self, settings, features, seed, index, outputs):
        model = settings.model
        widths = (features.shape[1], model.out, model.widths, model.activation)
        self.model = build_model(model.kind, *widths, dtype=torch.float64)
        self.features = torch.from_numpy(features)
        self.x = self.model.initial(stream(seed, f"x/{index}")).requires_grad_()
        self.y = torch.zeros(model.out, outputs, dtype=torch.float64, requires_grad=True)
        groups = [{"params": [self.x]}, {"params": [self.y]}]
        self.adam = torch.optim.Adam(groups, lr=1.0, betas=(0.9, 0.999), eps=1e-8)

    def logits(self, rows):
        return self.model.apply(self.x, self.features[rows]) @ self.y

    def point(self):
        return self.x.detach().clone(), self.y.detach().clone()

    def move_to(self, x, y):
        self.x.data, self.y.data = x, y


def trained(spec, blocks, labels):
    """Every party's named weights and y after the whole run, and (batch, K, weights) of each exchange."""
    settings, local = spec.train, spec.train.local
    rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
    outputs = int(labels.max()) + 1
    parties = [PooledParty(settings, a, spec.seed, m, outputs) for m, a in enumerate(blocks)]
    parts = -(-len(rows.lower) // local.rows)
    batches = 1 if parts == 1 else min(local.exchanges, -(-local.total_epochs // local.epochs))
    batch, steps, passes, chosen, history = 0, None, 0.0, [], []
    for k in range(1, local.exchanges + 1):
        if passes >= local.total_epochs:
            break
        now = local_rows(settings, rows, spec.seed, batch)
        target, per_pass = torch.from_numpy(labels[now]), max(1, len(now) // local.minibatch)
        most = max(local.least_steps, local.epochs * per_pass)
        h = torch.stack([party.logits(now) for party in parties]).sum(dim=0).detach()
        value = float(torch.nn.functional.cross_entropy(h, target))
        same = [entry for entry in history if entry["visit"] == (history[-1]["visit"] if history else None)]
        stayed = bool(history) and history[-1]["stays"]
        fall = (history[-1]["value"] - value) / history[-1]["value"] if stayed else None
        steps = most if steps is None else steps
        if fall is not None and fall > FAST:
            steps = min(2 * steps, most)
        elif fall is not None and fall < SLOW:
            steps = max(steps // 2, local.least_steps)
        weights = []
        points = [party.point() for party in parties]
        if fall is not None and fall < FAST:
            trail = [{"h": h, "points": points}, *reversed(same[-2:])]
            pairs = list(pairwise(trail))
            one_hot = np.eye(outputs)[labels[now]]
            moves = [(new["h"] - old["h"]).numpy() for new, old in pairs]
            best = np.clip(best_combination(Softmax(outputs), h.numpy(), moves, one_hot), -1, 3)
            weights = list(best * min(1.0, 1 - fall / FAST))
            for m, party in enumerate(parties):
                x, y = points[m]
                for weight, (new, old) in zip(weights, pairs, strict=True):
                    x = x + weight * (new["points"][m][0] - old["points"][m][0])
                    y = y + weight * (new["points"][m][1] - old["points"][m][1])
                party.move_to(x, y)
            h_start = h + sum(weight * (new["h"] - old["h"]) for weight, (new, old) in zip(weights, pairs, strict=True))
        else:
            h_start = h
        for m, party in enumerate(parties):
            _local_steps(spec, party, m, now, h_start, target, k, steps, len(parties), per_pass)
        chosen.append((batch, steps, weights))
        passes += steps / per_pass
        advances = batches > 1 and k > 1 and (fall is None or fall >= SLOW)
        visit = history[-1]["visit"] + (not stayed) if history else 0
        history.append({"h": h, "points": points, "value": value, "stays": not advances, "visit": visit})
        batch = (batch + 1) % batches if advances else batch
    named = [party.model.state_dict(party.x.detach()) for party in parties]
    return named, [party.y.detach() for party in parties], chosen


def _local_steps(spec, party, m, rows, h, target, k, steps, parties, per_pass):
    settings, local = spec.train, spec.train.local
    own = party.logits(rows).detach()
    size = local.minibatch
    for t in range(steps):
        turn, place = divmod(t, per_pass)
        if steps < per_pass or steps <= local.least_steps or size >= len(rows):
            some = np.arange(len(rows))
        else:
            words = stream(spec.seed, f"local/{m}", k, turn).bit_generator.random_raw(len(rows))
            some = np.argsort(words, kind="stable")[place * size : (place + 1) * size]
        for group, step in zip(party.adam.param_groups, (local.upper_step, local.lower_step), strict=True):
            group["lr"] = step * (steps - t) / (steps + 1)
        party.adam.zero_grad()
        seen = h[some] + parties * (party.logits(rows[some]) - own[some])
        loss = torch.nn.functional.cross_entropy(seen, target[some]) / parties
        (loss + settings.regularisation * party.y.square().sum()).backward()
        party.adam.step()
