"""What a session would expose, as the register of exposure writes it down."""

from parley.party.roles import Coverage, Opened
from parley.services.party.exposure import Asked
from parley.services.party.exposure_tables import Exposure
from parley.spec.digests import spec_digest
from parley.tables.loading import row_digest


def asked_of(opened: Opened, covered: Coverage, table_digest: str, outputs: int = 1) -> Asked:
    """What a training session would expose of the party's own table: `outputs` values of a row in each sum."""
    spec, table = opened.spec, opened.table
    exposure = Exposure(
        run_id=opened.run_id,
        algorithm=spec.train.algorithm,
        layout=spec.train.layout,
        table=spec.table_of(opened.index),
        table_digest=table_digest,
        rows_digest=row_digest(table),
        view=spec.parties[opened.index].view or "",
        columns=tuple(sorted(table.columns)),
        partners=tuple(sorted(opened.names)),
        seed=spec.seed,
        spec_digest=spec_digest(spec),
        exact=covered.exact,
        rank=None if covered.rank is None else -(-covered.rank // outputs),
        share=covered.share,
    )
    return Asked(exposure, table.ids, covered.sums, covered.own_batches)
