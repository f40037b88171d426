"""What a run has found out at a party, read from the model that it saved."""

from collections.abc import Collection

from parley.privacy.coefficients import Coefficient
from parley.services.party.algorithms import party_side
from parley.services.party.checkpoints import Store
from parley.tables.preprocessing import Fitted


def coefficients_of(store: Store, run_id: str, accepted: Collection[str]) -> list[Coefficient]:
    """Coefficients that a run has tuned, in the order of the columns; none if it tunes none.

    `accepted` are the algorithms that the policy accepts: one of them has saved the model.
    """
    model, kept = store.load_model(run_id), store.load_preprocessing(run_id)
    columns = [] if kept is None else Fitted.from_json(kept).outputs
    trained = store.algorithm(run_id)
    names = accepted if trained is None else [name for name in accepted if name == trained]
    found = (party_side(name).coefficients(model, columns) for name in names)
    return next((coefficients for coefficients in found if coefficients), [])
