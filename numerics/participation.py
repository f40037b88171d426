"""Which parties take part in a round: drawn from the run's seed, so that every role derives the same answer."""

from parley.numerics.streams import batch


def participants(seed: int, k: int, parties: int, sampled: int | None) -> tuple[int, ...]:
    """The indices of the `sampled` parties of round k, ascending; all of them if None."""
    if sampled is None or sampled == parties:
        return tuple(range(parties))
    return tuple(int(i) for i in batch(seed, "fedbio/participants", k, 0, parties, sampled))
