"""What a run has found out, asked of its parties."""

import asyncio
from collections.abc import Sequence

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.run.v1 import run_service_pb2 as pb
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, PartyUnknown, call
from parley.services.coordinator.registry_tables import RunRecord
from parley.services.wire.pages import page_of

NO_MODEL = "MODEL_MISSING"


async def coefficients_of(fleet: Fleet, record: RunRecord) -> list[pb.PartyCoefficients]:
    """Coefficients that a run has tuned, party by party; empty if it tunes none, or has no model yet."""
    found = await asyncio.gather(*(_of_party(fleet, name, record.run_id) for name in record.parties))
    return list(found) if any(each.coefficients or each.kept for each in found) else []


def coefficients_page(found: Sequence[pb.PartyCoefficients], token: str) -> pb.GetCoefficientsResponse:
    """A page of them; a party with many columns is spread over several."""
    each = [
        pb.PartyCoefficients(party=own.party, coefficients=[] if one is None else [one], kept=own.kept)
        for own in found
        for one in (*own.coefficients,) or (None,)
    ]
    page, following = page_of(each, token)
    answer = pb.GetCoefficientsResponse(next_page_token=following)
    for own in page:
        if answer.parties and answer.parties[-1].party == own.party:
            answer.parties[-1].coefficients.extend(own.coefficients)
        else:
            answer.parties.append(own)
    return answer


async def _of_party(fleet: Fleet, party: str, run_id: str) -> pb.PartyCoefficients:
    request, found = party_pb.GetCoefficientsRequest(run_id=run_id), pb.PartyCoefficients(party=party)
    try:
        while True:
            page = await call(party, lambda: fleet.stub(party).GetCoefficients(request))
            found.coefficients.extend(page.coefficients)
            found.kept, request.page_token = page.kept, page.next_page_token
            if not page.next_page_token:
                return found
    except PartyRefused as refusal:
        return pb.PartyCoefficients(party=party, kept="" if refusal.reason == NO_MODEL else str(refusal))
    except (PartyLost, PartyUnknown) as error:
        return pb.PartyCoefficients(party=party, kept=str(error))
