"""Deployed models, as a client sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from parley.contracts.run.v1 import deployment_pb2 as pb
from parley.protocols.tensor.codec import decode_tensor

if TYPE_CHECKING:
    from parley.client import Federation, Ids, Prediction

Rows = Mapping[str, Sequence[Any]]
"""Features by column: for each row a value, None for a missing one."""


@dataclass(frozen=True)
class Served:
    """Scores of rows, and which version has answered."""

    prediction: "Prediction"
    run_id: str
    version: int


class Deployment:
    """A model that is kept ready under a name."""

    def __init__(self, federation: "Federation", message: pb.Deployment) -> None:
        self._federation, self._message = federation, message

    def __repr__(self) -> str:
        return f"Deployment({self.name}, version {self.version}, {self.state})"

    @property
    def name(self) -> str:
        """The name that callers use."""
        return self._message.name

    @property
    def version(self) -> int:
        """The version that answers."""
        return self._message.version

    @property
    def run_id(self) -> str:
        """The run whose model answers."""
        return self._message.run_id

    @property
    def state(self) -> str:
        """SERVING, OPENING or REFUSED, when it was last asked for."""
        return pb.DeploymentState.Name(self._message.state).removeprefix("DEPLOYMENT_STATE_")

    @property
    def message(self) -> pb.Deployment:
        """The deployment as the coordinator sent it."""
        return self._message

    def predict(self, ids: "Ids", features: Mapping[str, Rows] | None = None) -> "Prediction":
        """Predict rows by id, one or many.

        `features` are blocks that the caller has itself: for each party its columns, each with a value for every row.
        """
        return self.ask(ids, features).prediction

    def ask(self, ids: "Ids", features: Mapping[str, Rows] | None = None) -> Served:
        """Like `predict`, and say which version has answered."""
        return predict_rows(self._federation, self.name, ids, features)

    def roll_back(self) -> Self:
        """Let the version before this one answer again."""
        request = pb.RollBackDeploymentRequest(name=self.name)
        self._message = self._federation.call("RollBackDeployment", request).deployment
        return self

    def undeploy(self) -> None:
        """Close it at every party."""
        self._federation.call("Undeploy", pb.UndeployRequest(name=self.name))


def predict_rows(federation: "Federation", name: str, ids: "Ids", features: Mapping[str, Rows] | None = None) -> Served:
    """Ask a deployed model about rows."""
    from parley.client import Prediction, no_blobs, row_ids

    wanted = row_ids(ids)
    blocks = [_block(party, rows, len(wanted)) for party, rows in (features or {}).items()]
    answer = federation.call("PredictRows", pb.PredictRowsRequest(name=name, ids=wanted, features=blocks))
    scores = decode_tensor(answer.scores, no_blobs(), name="scores", ndim=2)
    return Served(Prediction(wanted, scores, list(answer.classes)), answer.run_id, answer.version)


def _block(party: str, rows: Rows, count: int) -> pb.CallerFeatures:
    columns = list(rows)
    if any(len(rows[column]) != count for column in columns):
        raise ValueError(f"features of {party}: each column needs a value for each of the {count} rows")
    values = [_spelt(rows[column][row]) for row in range(count) for column in columns]
    return pb.CallerFeatures(party=party, columns=columns, values=values)


def _spelt(value: Any) -> str:
    plain = value.item() if hasattr(value, "item") else value
    return "" if plain is None or plain != plain else str(plain)
