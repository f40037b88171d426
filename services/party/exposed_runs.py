"""What a session would expose, as the register of exposure writes it down."""

import hashlib
from dataclasses import replace

from parley.party.roles import Coverage, Opened
from parley.services.party.exposure import Asked
from parley.services.party.exposure_tables import ANY_SEED, Exposure
from parley.services.party.preprocessing import to_keep
from parley.services.party.read_digests import DigestingTables
from parley.spec.digests import spec_digest
from parley.tables.loading import Table, id_digest


def asked_of(opened: Opened, covered: Coverage, reads: DigestingTables, outputs: int = 1) -> Asked:
    """What a training session would expose of the tables that it reads: `outputs` values of a row in each sum."""
    spec, table = opened.spec, opened.table
    exposure = Exposure(
        run_id=opened.run_id,
        algorithm=spec.train.algorithm,
        layout="figures" if covered.figures else spec.train.layout,
        table=spec.table_of(opened.index),
        table_digest=reads.digests[f"table {table.name}"],
        rows_digest=table.row_digest,
        view=spec.parties[opened.index].view or "",
        columns=tuple(sorted(table.columns)),
        partners=_partners(opened),
        seed=spec.seed if covered.seeded else ANY_SEED,
        spec_digest=spec_digest(spec),
        exact=covered.exact,
        rank=None if covered.rank is None else -(-covered.rank // outputs),
        share=covered.share,
        drawn=_drawn(opened, covered),
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
    judged = tuple(
        Asked(replace(exposure, layout="judged", rows_digest=id_digest(ids), share=0.0, drawn=""), ids, 0, False)
        for ids in covered.judged
        if covered.exact
    )
    return Asked(exposure, table.ids, covered.sums, covered.own_batches, further + judged)


def _partners(opened: Opened) -> tuple[str, ...]:
    """All parties; one that reads another table than this party's is another partner than with the same one."""
    spec, own = opened.spec, opened.spec.table_of(opened.index)
    read = {entry.name: spec.table_of(index) for index, entry in enumerate(spec.parties)}
    return tuple(sorted(name if table == own else f"{name}: {table}" for name, table in read.items()))


def _scales(table: Table) -> str:
    """Digest of what columns were divided by: figures of training rows, where the owner has them learnt."""
    fitted = to_keep(table)
    scales = [] if fitted is None else [(one.column, one.scale) for one in fitted.numbers]
    return hashlib.sha256(repr(scales).encode()).hexdigest()


def _drawn(opened: Opened, covered: Coverage) -> str:
    """Digest of what decides from which rows, and of which parties, one value is made.

    Whom a round samples is the seed's choice, and who is lost from a sum with recovery is the coordinator's word: with
    the same batches, two such sums differ by a party.
    """
    spec = opened.spec
    if not covered.drawn and spec.train.layout == "vertical":
        return "" if covered.rank is None else _scales(opened.table)
    # An algorithm that does not say it, where parties hold rows: any other settings may choose other rows.
    parts = [covered.drawn or f"{spec.split!r} {spec.train!r}", f"tables {spec.train.tables}"]
    if spec.train.sampled_parties is not None:
        parts.append(f"{spec.sampled} sampled by seed {spec.seed}")
    if spec.privacy.aggregation.recovery:
        parts.append(f"recovery in {opened.run_id}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
