"""Networks of decentralised runs: who sends to whom at each step, named by a few numbers and the run's seed."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.spec.section import Section

Edge = tuple[str, str]


class NetworkSpec(Section):
    """The links of every step; all parties derive the same ones from the seed."""

    kind: Literal[
        "fully_connected", "erdos_renyi", "random_undirected", "random_directed", "ring", "regular", "edge_list"
    ] = "random_directed"
    """The family of networks."""
    probability: tuple[float, float] = (0.4, 0.8)
    """Range from which each pair's link probability is drawn, for the random kinds."""
    degree: int = Field(default=2, ge=1, le=63)
    """Neighbours of each party in a `regular` network."""
    edges: tuple[tuple[Edge, ...], ...] = Field(default=(), max_length=4096)
    """`edge_list`: for each step its pairs [sender, receiver] of party names; repeated when the list ends."""
    window: int = Field(default=50, ge=1, le=100_000)
    """B: within any so many steps everyone must be able to reach everyone, or the run is refused."""
    weights: Literal["push", "metropolis"] = "push"
    """Equal portions to all receivers, or the doubly stochastic Metropolis weights of undirected links."""

    @field_validator("probability")
    @classmethod
    def _range(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= value[0] <= value[1] <= 1:
            raise ValueError("a range of probabilities such as [0.4, 0.8] is wanted")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.kind == "edge_list") != bool(self.edges):
            raise ValueError("edges are for kind edge_list, which needs the pairs of at least one step")
        if self.weights == "metropolis" and self.kind in ("random_directed", "edge_list"):
            raise ValueError(f"metropolis weights need undirected links; {self.kind} has directed ones: take push")
        return self

    def check(self, parties: list[str]) -> None:
        """Refuse a network that these parties cannot make."""
        unknown = sorted({name for step in self.edges for edge in step for name in edge} - set(parties))
        if unknown:
            raise ValueError(f"edges name {', '.join(unknown)}, who takes no part in the run")
        if self.kind == "regular" and (self.degree >= len(parties) or self.degree * len(parties) % 2):
            raise ValueError(
                f"no {self.degree}-regular network has {len(parties)} members: choose a smaller degree, even if the "
                "number of parties is odd"
            )


def class_names(value: Any) -> Any:
    """Classes as label columns write them; YAML's truth values are refused."""
    if not isinstance(value, (list, tuple)):
        return value
    if any(isinstance(name, bool) for name in value):
        raise ValueError('YAML reads yes, no, on and off as truth values: write classes in quotes, such as "yes"')
    return [str(name) if isinstance(name, int) else name for name in value]
