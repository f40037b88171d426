"""Names of one label file: what its owner keeps under any of them is kept under all."""

import pytest

from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore


@pytest.fixture
def store(tmp_path):
    for name in ("labels", "copy", "other"):
        (tmp_path / f"{name}.csv").write_text(f"id,label\n1,{name == 'other'}\n")
    strict = {"unprotected": "refuse", "evaluation_epsilon": 0.5, "minimum_evaluation": 50, "budget": {"epsilon": 2}}
    return LabelStore(
        {
            "strict": LabelConfig(path=tmp_path / "labels.csv", **strict),
            "lax": LabelConfig(path=tmp_path / "copy.csv", minimum_evaluation=5),
            "other": LabelConfig(path=tmp_path / "other.csv", minimum_evaluation=5),
        }
    )


@pytest.mark.parametrize("name", ["strict", "lax"])
def test_another_name_of_the_labels_is_as_strict_as_the_strictest(store, name):
    terms, evaluation = store.terms_of(name), store.evaluation_of(name)
    assert (terms.unprotected, terms.epsilon) == ("refuse", 2)
    assert (evaluation.epsilon, evaluation.minimum_rows) == (0.5, 50)


def test_other_labels_are_as_their_owner_says(store):
    assert (store.terms_of("other").unprotected, store.terms_of("other").epsilon) == ("allow", 10)
    assert (store.evaluation_of("other").epsilon, store.evaluation_of("other").minimum_rows) == (None, 5)
