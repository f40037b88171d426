"""What a session would expose, as the register of exposure writes it down."""

from dataclasses import replace

from parley.party.roles import Coverage, Opened
from parley.services.party.exposure import Asked
from parley.services.party.exposure_tables import ANY_SEED, Exposure
from parley.services.party.read_digests import DigestingTables
from parley.spec.digests import spec_digest


def asked_of(opened: Opened, covered: Coverage, reads: DigestingTables, outputs: int = 1) -> Asked:
    """What a training session would expose of the tables that it reads: `outputs` values of a row in each sum."""
    spec, table = opened.spec, opened.table
    exposure = Exposure(
        run_id=opened.run_id,
        algorithm=spec.train.algorithm,
        layout=spec.train.layout,
        table=spec.table_of(opened.index),
        table_digest=reads.digests[f"table {table.name}"],
        rows_digest=table.row_digest,
        view=spec.parties[opened.index].view or "",
        columns=tuple(sorted(table.columns)),
        partners=tuple(sorted(opened.names)),
        seed=spec.seed if covered.seeded else ANY_SEED,
        spec_digest=spec_digest(spec),
        exact=covered.exact,
        rank=None if covered.rank is None else -(-covered.rank // outputs),
        share=covered.share,
    )
    further = tuple(
        Asked(
            replace(exposure, table=name, table_digest=reads.digests[f"table {name}"], rows_digest=digest, share=0.0),
            ids,
            0,
            covered.own_batches,
        )
        for name, (ids, digest) in reads.further.items()
    )
    return Asked(exposure, table.ids, covered.sums, covered.own_batches, further)
