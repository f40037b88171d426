"""What a run has found out at a party, read from the model that it saved."""

import json
from collections.abc import Collection
from dataclasses import asdict

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


def told_coefficients(store: Store, run_id: str, accepted: Collection[str]) -> list[Coefficient]:
    """The same for others: those that were told first, whatever later sessions of the run have made of its model.

    What a party keeps of a run is a secret function of what the coordinator sends. One that could have it told for one
    choice after the other would solve for the function, and with it for columns.
    """
    found = [asdict(one) for one in coefficients_of(store, run_id, accepted)]
    first = store.first_told(run_id, json.dumps(found).encode()) if found else b"[]"
    return [Coefficient(**one) for one in json.loads(first)]
