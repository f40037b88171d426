"""How much each class counts in training."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from parley.spec.protection import ProtectionSpec

Weight = Annotated[float, Field(gt=0, le=1e6)]


def _named(value: Any) -> Any:
    """YAML reads the class 1 as a number."""
    return {str(name): weight for name, weight in value.items()} if isinstance(value, dict) else value


ClassWeights = Annotated[Literal["balanced"] | dict[str, Weight] | None, BeforeValidator(_named)]
"""`balanced` (rows / (classes × rows of the class)), or a weight for each class by its name; null weighs rows alike."""


def check_class_weights(weights: Any, *, classes: bool, privacy: ProtectionSpec) -> None:
    """Refuse weights of classes where there are none, or where noise hides which class a row is of."""
    if weights is None:
        return
    if not classes:
        raise ValueError("class_weights are for classes, and these labels are numbers: leave them out")
    if privacy.labels.mechanism != "off":
        raise ValueError(
            "class_weights need to know a row's class, and the run's labels are noisy: leave them out and choose "
            "`evaluation.threshold` instead, or write `labels: {mechanism: off}`"
        )
