"""What can leave: one entry of the manifest for each field of the algorithm's messages."""

from parley.privacy.manifest import SECURE_SUM, Entry, Package

_RIDGE = Package("federated_ridge.v1")

CROSSINGS: tuple[Entry, ...] = (
    _RIDGE.derived("Contribution.sum", "a party's rows and targets", SECURE_SUM, "coordinator: the sum over all"),
    _RIDGE.derived("Instruction.coefficients", "sums over all parties", "only sums are in it", "all parties"),
    *_RIDGE.control("Instruction", "round phase", "all parties"),
    *_RIDGE.control("Contribution", "round", "coordinator"),
)
