"""What a run has found out, asked of its parties."""

import asyncio

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.run.v1 import run_service_pb2 as pb
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, PartyUnknown, call
from parley.services.coordinator.registry_tables import RunRecord

NO_MODEL = "MODEL_MISSING"


async def coefficients_of(fleet: Fleet, record: RunRecord) -> list[pb.PartyCoefficients]:
    """Coefficients that a run has tuned, party by party; empty if it tunes none, or has no model yet."""
    found = await asyncio.gather(*(_of_party(fleet, name, record.run_id) for name in record.parties))
    return list(found) if any(each.coefficients or each.kept for each in found) else []


async def _of_party(fleet: Fleet, party: str, run_id: str) -> pb.PartyCoefficients:
    request = party_pb.GetCoefficientsRequest(run_id=run_id)
    try:
        answer = await call(party, lambda: fleet.stub(party).GetCoefficients(request))
    except PartyRefused as refusal:
        return pb.PartyCoefficients(party=party, kept="" if refusal.reason == NO_MODEL else str(refusal))
    except (PartyLost, PartyUnknown) as error:
        return pb.PartyCoefficients(party=party, kept=str(error))
    return pb.PartyCoefficients(party=party, coefficients=answer.coefficients, kept=answer.kept)
