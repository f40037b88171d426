"""What a spec of BAMBI may leave out, and what it may not say."""

import pytest
from pydantic import ValidationError

from parley.protocols.bambi.settings import BambiSpec


def settings(**given):
    return BambiSpec.model_validate({"algorithm": "bambi", **given})


def test_a_spec_that_names_the_algorithm_alone_gets_settings_that_work():
    found = settings()
    assert (found.upper.optimiser.kind, found.upper.batch, found.lower.batch) == ("adam", 1024, 1024)
    assert found.implicit.adjoint_clip == 1.0


def test_what_a_spec_says_is_kept_and_only_the_rest_is_filled_in():
    found = settings(upper={"steps": 7, "optimiser": {"step": 0.5}}, lower={"batch": None})
    assert (found.upper.steps, found.upper.batch, found.lower.batch) == (7, 1024, None)
    assert (found.upper.optimiser.kind, found.upper.optimiser.step, found.upper.optimiser.decay_from) == ("sgd", 0.5, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"problem": "hyper_parameters"},
        {"hypergradient": "zeroth_order", "lower": {"solver": "sgd"}},
        {"lower": {"solver": "sgd"}},
    ],
)
def test_other_modes_keep_their_own_defaults(given):
    assert settings(**given).upper.optimiser.kind == "sgd"
    assert settings(**given).lower.batch is None


@pytest.mark.parametrize("given", [{}, {"problem": "joint"}, {"problem": "hyper_parameters"}])
def test_settings_that_were_filled_in_read_back_the_same(given):
    found = settings(**given)
    assert BambiSpec.model_validate(found.model_dump()) == found


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"problem": "joint", "hypergradient": "local"}, "leave `hypergradient` out"),
        ({"problem": "joint", "lower": {"steps": 3}}, "reads `optimiser` and nothing else"),
        (
            {"problem": "own", "own": {"label_side": {"path": "a:B"}}, "class_weights": "balanced"},
            "`class_weights` would weigh nothing",
        ),
        ({"problem": "joint", "lower": {"solver": "newton"}}, "reads `optimiser` and nothing else"),
        ({"lower": {"solver": "newton", "optimiser": {"kind": "adam"}}}, "write `solver: sgd`"),
        ({"lower": {"solver": "newton", "optimiser": {"momentum": 0.5}}}, "write `solver: sgd`"),
        ({"upper": 3}, "upper"),
    ],
)
def test_what_would_be_ignored_is_refused(given, sentence):
    with pytest.raises(ValidationError, match=sentence):
        settings(**given)
