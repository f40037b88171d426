"""Settings of BAMBI (vertical federated bilevel learning)."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from parley.protocols.bambi.columns import crossing_columns
from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.class_weights import ClassWeights, check_class_weights
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section, Widths


class ModelSpec(Section):
    """The embedding network T_m of each party; its weights are the upper block x_m."""

    kind: Literal["identity", "linear", "mlp", "cnn", "import"] = "mlp"
    """`identity` hands features on; `import` takes `factory`, if the party's policy allows it."""
    hidden: Widths | None = Field(default=None, max_length=16)
    """Widths of the hidden layers (mlp, 64 if left out), or channels of the two convolutions (cnn)."""
    out: int = Field(default=32, ge=1, le=65536)
    """Width of the embedding."""
    activation: Literal["relu", "tanh"] = "relu"
    """Between layers."""
    image_shape: tuple[int, int] | None = None
    """Height and width of a party's image strip (cnn)."""
    factory: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """`package.module:function` that makes a torch module (import)."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if any(width < 1 or width > 65536 for width in self.hidden or ()):
            raise ValueError("hidden widths lie between 1 and 65536")
        if self.kind == "import" and self.factory is None:
            raise ValueError("kind import needs `factory: package.module:function`")
        if self.kind == "cnn" and self.image_shape is None:
            raise ValueError("kind cnn needs `image_shape: [height, width]`")
        if self.hidden and self.kind in ("identity", "linear", "import"):
            raise ValueError(f"kind {self.kind} has no hidden layers: leave `hidden` out, or take kind mlp")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """`hidden`, with its default filled in."""
        return self.hidden if self.hidden is not None else (64,) if self.kind == "mlp" else ()


class OwnSideSpec(Section):
    """Functions of one's own at the label holder, or at each party."""

    path: str = Field(pattern=r"^[\w.]+:\w+$")
    """`package.module:Class` that the host's owner allows, or one of `parley.numerics.problems`."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict, max_length=64)
    """What the class is made with, by name."""


class OptimiserSpec(Section):
    """A first-order method with a schedule."""

    kind: Literal["sgd", "adam"] = "sgd"
    """Plain (or heavy-ball) gradient steps, or Adam."""
    step: float = Field(default=0.1, gt=0)
    """Step size α (upper) or β (lower)."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Heavy-ball momentum of sgd."""
    decay_from: float = Field(default=1.0, ge=0, le=1)
    """From this share of the run on, the step falls linearly to zero; 1 keeps it constant."""
    clip: float | None = Field(default=None, gt=0)
    """Largest Euclidean norm of a party's gradient; longer ones are scaled down."""


class OwnSpec(Section):
    """A problem of one's own (problem: own)."""

    label_side: OwnSideSpec | None = None
    """Both objectives on the summed embedding, and upper variables that they share; the loss if left out."""
    party_side: OwnSideSpec | None = None
    """The embedding of each party, its upper variables, and what it adds to both levels; `model` if left out."""
    attribute: str | None = None
    """Another label table of the coordinator, whose values the label side is given, noised as labels are."""
    optimiser: OptimiserSpec | None = None
    """How the label side's variables are updated; as `upper.optimiser` says if left out."""


class UpperSpec(Section):
    """The upper level."""

    steps: int = Field(default=100, ge=0, le=10_000_000)
    """Upper iterations K."""
    batch: int | None = Field(default=256, ge=1)
    """Rows of an upper batch; null takes all upper rows."""
    optimiser: OptimiserSpec = OptimiserSpec()
    """How x is updated; where left out, Adam for networks that `implicit` or `joint` trains, else sgd."""


class LowerSpec(Section):
    """The lower level."""

    solver: Literal["newton", "sgd"] = "newton"
    """`newton` solves with label-free curvature products (`implicit` only); `sgd` is the paper's."""
    steps: int = Field(default=1, ge=1, le=100_000)
    """Newton or gradient steps N per upper iteration."""
    batch: int | None = Field(default=None, ge=1)
    """Rows of a lower batch; null takes all lower rows."""
    optimiser: OptimiserSpec = OptimiserSpec(step=0.5)
    """How y is updated by `sgd`, and in a joint problem (there by Adam where left out)."""
    averaging: bool = True
    """Newton on batches: let y average over them, by taking ever smaller parts of a step; off fits each batch anew."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Lower steps before the first upper iteration."""
    final_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Lower steps after the last upper iteration."""


class ZerothOrderSpec(Section):
    """The zeroth-order Jacobian estimator."""

    directions: int = Field(default=1, ge=1, le=100_000)
    """Perturbed trajectories Q."""
    smoothing: float = Field(default=1e-3, gt=0, lt=1)
    """Length μ of a perturbation."""
    kind: Literal["orthogonal", "gaussian"] = "orthogonal"
    """How directions are drawn; orthogonal ones are exact where Q is the number of upper parameters."""
    jacobian_clip: float | None = Field(default=0.3, gt=0)
    """Largest norm of the Jacobian term relative to the direct term at each party; null leaves it free."""


class ImplicitSpec(Section):
    """The implicit hyper-gradient by conjugate gradients."""

    rounds: int = Field(default=8, ge=1, le=10_000)
    """Conjugate-gradient rounds of the adjoint system."""
    newton_rounds: int = Field(default=8, ge=1, le=10_000)
    """Conjugate-gradient rounds of each Newton step."""
    tolerance: float = Field(default=1e-10, ge=0, lt=1)
    """A system counts as solved when its residual has shrunk by this factor."""
    adjoint_clip: float | None = Field(default=1.0, gt=0)
    """On lower batches: longest indirect term of the hyper-gradient relative to the direct one at each party; null
    leaves it free. On all lower rows it is exact and never cut."""
    preconditioner: bool = True
    """Let each party precondition with its own block; spares rounds and sends nothing."""
    envelope: bool = False
    """Where both levels have the same rows: take the direct term alone, since the indirect one vanishes at the lower
    solution and is noise on a batch; spares the rounds of the adjoint system. Elsewhere it changes nothing."""


class LocalSpec(Section):
    """Local rounds: few exchanges, and many steps of every party on its own block between them.

    How many steps, and how far to go on along earlier moves, the run chooses from how the joint loss falls.
    """

    exchanges: int = Field(default=50, ge=1, le=100_000)
    """Most exchanges of a run; one where local work pays is done much sooner."""
    rows: int = Field(default=8192, ge=1)
    """Most rows of an exchange; a larger lower set is divided evenly among exchanges."""
    epochs: int = Field(default=5, ge=1, le=1000)
    """Most passes of a party over the rows of an exchange before the next one; 10 in a run by `local` if left out."""
    total_epochs: int = Field(default=50, ge=1, le=100_000)
    """Passes over the rows of exchanges after which a run ends; 100 in a run by `local` if left out."""
    least_steps: int = Field(default=4, ge=1, le=10_000)
    """Fewest local steps between two exchanges, K."""
    minibatch: int = Field(default=256, ge=1)
    """Rows of a local step."""
    upper_step: float = Field(default=3e-3, gt=0)
    """Step size of x (Adam) at the beginning of a round; it falls to zero until the next exchange."""
    lower_step: float = Field(default=1e-2, gt=0)
    """Step size of y (Adam) at the beginning of a round."""


NEWTON_REPEATS = 3
"""Newton steps that the coordinator may add to those of a spec, where they left y worse off than it was."""
_ADAM = {"kind": "adam", "step": 3e-3, "decay_from": 0.3}
OWN = {
    "model": {"kind": "identity"},
    "upper": {"steps": 50, "batch": None, "optimiser": {"kind": "adam", "step": 0.1}},
    "lower": {"solver": "newton", "steps": 2, "warmup_steps": 3},
}
"""What `problem: own` takes with Newton's lower steps."""
IMPLICIT = {
    "upper": {"steps": 500, "batch": 1024, "optimiser": {**_ADAM, "step": 5e-3}},
    "lower": {"solver": "newton", "batch": 1024, "warmup_steps": 3},
    "implicit": {"rounds": 1, "newton_rounds": 1},
}
"""What `hypergradient: implicit` takes for networks (docs/papers/bambi.md says what it was tried on)."""
ENVELOPE = {"implicit": {"envelope": True}}
"""And where it does not state `implicit.rounds`."""
LOCAL = {"local": {"epochs": 10, "total_epochs": 100}}
"""What `hypergradient: local` takes; fields keep their first defaults, and specs of other modes their digests."""
JOINT = {
    "upper": {"steps": 1000, "batch": 512, "optimiser": _ADAM},
    "lower": {"solver": "sgd", "optimiser": {**_ADAM, "step": 1e-2}},
}
"""What `problem: joint` takes."""


def _with_defaults(given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """`given`, with the sections and fields that it leaves out; what is no section is for the reader to refuse."""
    found = dict(given)
    for name, value in defaults.items():
        there = found.get(name, {})
        if isinstance(value, dict) and isinstance(there, dict):
            found[name] = there if name == "optimiser" and there else _with_defaults(there, value)
        elif name not in found:
            found[name] = value
    return found


class BambiSpec(AlgorithmSettings):
    """Vertical federated bilevel learning: an upper block x_m and a lower block y_m at each party."""

    layout: ClassVar[Layout] = "vertical"
    validates: ClassVar[Literal["split", "always", "never"]] = "split"
    noises_sums: ClassVar[bool] = True
    algorithm: Literal["bambi"]
    """This algorithm."""
    problem: Literal["hyper_representation", "hyper_parameters", "joint", "own"] = "hyper_representation"
    """Learn embeddings (VFHRL) or regularisation coefficients (VFHO); `own` is what `own` names; `joint` has one level,
    plain split learning on the rows of both, to compare with."""
    hypergradient: Literal["implicit", "local", "zeroth_order", "zeroth_order_local"] = "implicit"
    """`implicit` is exact; `local` needs the fewest exchanges where both levels have the same rows; `zeroth_order` is
    unbiased; `zeroth_order_local` is the paper's, biased."""
    loss: Literal["softmax", "logistic", "squared"] = "softmax"
    """Loss of both levels on the summed embedding."""
    class_weights: ClassWeights = None
    """How much rows of each class count: `balanced`, or a weight for each class by its name; alike if left out. With
    exact labels only."""
    model: ModelSpec = ModelSpec()
    """The embedding of each party (hyper_representation)."""
    regularisation: float = Field(default=1e-4, gt=0, le=1e6)
    """γ of γ‖y‖²; the initial coefficient in hyper_parameters."""
    coefficients: Literal["party", "feature"] = "party"
    """hyper_parameters: one coefficient for each party, or for each of its features."""
    intercept: bool = True
    """Where features are the embedding (hyper_parameters, kind identity): give the first party a column of ones."""
    message: Literal["half", "full"] | None = None
    """Precision of what goes back to the parties; `half` spares bytes, `full` keeps the run's dtype. If left out, half
    where a network learns classes in float32 by `implicit`, `local` or `joint`."""
    own: OwnSpec | None = None
    """A problem of one's own."""
    upper: UpperSpec = UpperSpec()
    """The upper level."""
    lower: LowerSpec = LowerSpec()
    """The lower level."""
    zeroth_order: ZerothOrderSpec = ZerothOrderSpec()
    """Settings of the zeroth-order modes."""
    implicit: ImplicitSpec = ImplicitSpec()
    """Settings of the implicit mode."""
    local: LocalSpec = LocalSpec()
    """Settings of local rounds."""

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        """Where a spec says nothing, settings that work without tuning by `implicit`, `local` or `joint`."""
        if not isinstance(given, dict):
            return given
        problem, lower = given.get("problem", "hyper_representation"), given.get("lower", {})
        implicit = problem == "hyper_representation" and given.get("hypergradient", "implicit") == "implicit"
        if implicit and isinstance(lower, dict) and lower.get("solver", "newton") == "newton":
            system = given.get("implicit", {})
            stated = isinstance(system, dict) and "rounds" in system  # whoever states the rounds means to have them
            return _with_defaults(given, IMPLICIT if stated else _with_defaults(IMPLICIT, ENVELOPE))
        if given.get("hypergradient") == "local":
            return _with_defaults(given, LOCAL)
        if problem == "own":
            newton = isinstance(lower, dict) and lower.get("solver", "newton") == "newton"
            return _with_defaults(given, OWN if newton else {"model": OWN["model"]})
        return _with_defaults(given, JOINT) if problem == "joint" else given

    @model_validator(mode="after")
    def _modes_fit(self) -> Self:
        if self.problem == "joint" and self.hypergradient != "implicit":
            raise ValueError("problem joint has one level and no hyper-gradient: leave `hypergradient` out")
        if self.problem == "joint" and self.lower != LowerSpec(solver="sgd", optimiser=self.lower.optimiser):
            raise ValueError("problem joint has one level: of `lower` it reads `optimiser` and nothing else")
        if self.lower.solver == "newton" and self.lower.optimiser != LowerSpec().optimiser:
            raise ValueError(
                "lower.optimiser is for gradient steps, and Newton's have none: leave it out, or write `solver: sgd`"
            )
        if self.implicit.envelope and self.lower.solver != "newton":
            raise ValueError("implicit.envelope goes with Newton's steps: leave it out, or write `solver: newton`")
        if self.hypergradient == "local" and self.problem != "hyper_representation":
            raise ValueError(
                "hypergradient local learns embeddings, where the direct term is the whole hyper-gradient: tune "
                "coefficients with `hypergradient: implicit`"
            )
        if self.lower.solver == "newton" and self.hypergradient.startswith("zeroth_order"):
            raise ValueError(
                f"hypergradient {self.hypergradient} differentiates through gradient steps: "
                "write `lower: {solver: sgd}`"
            )
        return self

    @model_validator(mode="after")
    def _own_fits(self) -> Self:
        own = self.own
        if (self.problem == "own") != (own is not None) or (own and not own.label_side and not own.party_side):
            raise ValueError(
                "a problem of one's own is `problem: own` with `own: {label_side: {path: ...}}`, `party_side`, or both"
            )
        if own is None:
            return self
        if self.hypergradient not in ("implicit", "zeroth_order"):
            raise ValueError("problem own takes `hypergradient: implicit` or `zeroth_order`: the others know its form")
        if own.party_side is not None and self.model != ModelSpec(kind="identity") and self.model != ModelSpec():
            raise ValueError("own.party_side makes the embedding: leave `model` out")
        if own.label_side is not None and self.class_weights is not None:
            raise ValueError(
                "own.label_side states both losses, so that `class_weights` would weigh nothing: leave them out and "
                "weigh classes there, as `parley.numerics.problems.class_weights:ClassWeights` does"
            )
        if own.label_side is None and (own.attribute is not None or own.optimiser is not None):
            raise ValueError("own.attribute and own.optimiser are for own.label_side: name that too")
        return self

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:  # noqa: ARG002 (any parties will do)
        """Refuse a protection that this algorithm cannot give."""
        privacy.labels.check_kind(real=self.loss == "squared")
        check_class_weights(self.class_weights, classes=self.loss != "squared", privacy=privacy)
        if privacy.features.kind == "per_sum":
            self._check_noised_sums()

    def _check_noised_sums(self) -> None:
        if self.problem == "own":
            raise ValueError("features per_sum knows the problems that are built in, not your own: take `kind: once`")
        if self.problem != "joint" and (self.lower.solver != "sgd" or not self.hypergradient.startswith("zeroth")):
            raise ValueError(
                "features per_sum noises gradient steps: write `problem: joint`, or `lower: {solver: sgd}` with "
                "`hypergradient: zeroth_order` (or zeroth_order_local); or take `features: {kind: once}`"
            )
        if self.embeds and self.model.kind not in ("linear", "mlp"):
            raise ValueError(
                f"features per_sum needs the gradient of every single row, which model.kind {self.model.kind} does not "
                "give: take identity, linear or mlp"
            )

    def check_split(self, lower: str | float, upper: str | float) -> None:
        """Refuse local rounds on different rows: there the direct term is not the hyper-gradient."""
        if self.hypergradient == "local" and upper not in ("lower", lower if isinstance(lower, str) else None):
            raise ValueError(
                "hypergradient local is for levels with the same rows: write `split: {upper: lower}`, or take "
                "`hypergradient: implicit`"
            )

    def columns(self, outputs: int) -> int:
        """Columns of h that cross: all but one of softmax, unless a problem of one's own may see a constant."""
        return crossing_columns(outputs) if self.own is None and self.loss == "softmax" else outputs

    def coarse(self, dtype: str) -> bool:
        """Whether a few digits are enough in what crosses: where a network learns classes from samples of the rows.

        Coefficients are tuned exactly, and zeroth order reads small differences.
        """
        plain = self.own is None and self.loss != "squared" and self.trajectories == 1
        return plain and dtype == "float32" and self.embeds

    def sum_bits(self, dtype: str) -> Literal[32, 64]:
        """The ring that sums need."""
        return 32 if self.coarse(dtype) else 64

    @property
    def takes_coarse_sums(self) -> bool:
        """Where sums hold logits of classes and nothing else: systems of equations need their scalars exact."""
        alone = self.hypergradient == "local" or self.problem == "joint"
        return alone and self.embeds and self.loss != "squared"

    def sends_half(self, dtype: str) -> bool:
        """Whether arrays go to the parties in half precision."""
        return self.message == "half" or (self.message is None and self.coarse(dtype))

    @property
    def embeds(self) -> bool:
        """Whether a network makes the embedding; otherwise it is the features themselves."""
        if self.own is not None and self.own.party_side is not None:
            return True
        return self.problem != "hyper_parameters" and self.model.kind != "identity"

    @property
    def imports(self) -> tuple[str, ...]:
        """The model's factory, and both sides of a problem of one's own."""
        sides = (self.own.label_side, self.own.party_side) if self.own is not None else ()
        factory = (self.model.factory,) if self.model.factory is not None else ()
        return (*factory, *(side.path for side in sides if side is not None))

    @property
    def own_optimiser(self) -> OptimiserSpec:
        """How the label side's variables are updated."""
        return self.own.optimiser if self.own is not None and self.own.optimiser is not None else self.upper.optimiser

    @property
    def run_length(self) -> int:
        """Iterations of the whole run."""
        return self.local.exchanges if self.hypergradient == "local" else self.upper.steps

    @property
    def trajectories(self) -> int:
        """The base trajectory and its perturbed copies, Q + 1."""
        return 1 + self.zeroth_order.directions if self.hypergradient.startswith("zeroth_order") else 1
