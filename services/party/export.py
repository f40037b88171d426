"""What a party's owner takes out of a run: the party's own block, and how its rows are preprocessed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parley.party.exports import ExportRefused, Layers
from parley.services.party.algorithms import party_side
from parley.services.party.checkpoints import Store
from parley.services.party.config import PartyConfig
from parley.spec.digests import spec_digest
from parley.spec.parsing import parse_spec
from parley.tables.preprocessing import Fitted


@dataclass(frozen=True)
class ExportedBlock:
    """A party's part of a trained model, complete."""

    run_id: str
    party: str
    algorithm: str
    fitted: Fitted
    """From a row of the table to the columns that the layers take."""
    layers: Layers

    @property
    def columns(self) -> Sequence[str]:
        """What the layers take."""
        return self.fitted.outputs


def exported_block(config: PartyConfig, run_id: str, spec_file: Path | None = None) -> ExportedBlock:
    """The block that a run has saved here.

    Raises:
        ModelMissing: if it has saved none.
        ExportRefused: if it cannot be taken out.
    """
    store = Store(config.state)
    model, kept = store.load_model(run_id), store.load_preprocessing(run_id)
    text = spec_file.read_text("utf-8") if spec_file is not None else store.spec_yaml(run_id)
    if text is None:
        raise ExportRefused("this run began before parties kept specs: give the spec that it was trained with (--spec)")
    spec = parse_spec(text)
    if spec_digest(spec) != store.spec(run_id):
        raise ExportRefused(f"{spec_file} is not the spec that run {run_id} was trained with")
    side = party_side(spec.train.algorithm)
    if side.exported is None:
        raise ExportRefused(f"{spec.train.algorithm} trains no block: the whole model is {run_id}'s model.safetensors")
    index = spec.index_of(config.name)
    layers = side.exported(spec, index, model)
    if kept is None:
        raise ExportRefused("this run was trained on a sparse table, whose columns have no names to export")
    fitted = Fitted.from_json(kept)
    if fitted.bins:
        raise ExportRefused(
            "this run has binned its columns (`binned_by`), and bins are not exported: deploy it instead"
        )
    if fitted.dates or fitted.indicators or any(entry.hashed for entry in fitted.categories):
        raise ExportRefused(
            "dates, indicators of missing values and hashed categories are not exported: deploy the run instead"
        )
    return ExportedBlock(run_id, config.name, spec.train.algorithm, fitted, layers)
