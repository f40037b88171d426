"""What the coordinator makes of mixtures: a basis as wide as the columns, or a sentence that says why there is none."""

import numpy as np
import pytest

from parley.coordinator.glm.rounds import reduce
from parley.numerics.generalised_linear import NoSolution
from parley.protocols.glm.messages import mixtures

DRAW = np.random.default_rng(0)


def mixed(columns):
    return columns @ DRAW.standard_normal((columns.shape[1], mixtures(columns.shape[1])))


def test_the_basis_spans_the_columns_and_is_orthonormal_times_the_root_of_the_rows():
    columns = DRAW.standard_normal((60, 4))
    reduced = reduce(mixed(columns), penalised=False)
    z = reduced.z[:, :-1]
    np.testing.assert_allclose(z.T @ z / 60, np.eye(4), atol=1e-9)
    fitted = z @ np.linalg.lstsq(z, columns, rcond=None)[0]
    np.testing.assert_allclose(fitted, columns, atol=1e-9)
    assert (reduced.z[:, -1] == 1).all()


def test_too_few_rows_and_dependent_columns_are_refused_unless_there_is_a_penalty():
    columns = DRAW.standard_normal((60, 4))
    with pytest.raises(NoSolution, match="5 training rows do not determine 4"):
        reduce(mixed(columns[:5]), penalised=False)
    twice = mixed(np.column_stack([columns, columns[:, 0]]))
    with pytest.raises(NoSolution, match="combinations of each other"):
        reduce(twice, penalised=False)
    assert reduce(twice, penalised=True).z.shape == (60, 5)


def test_columns_that_add_up_to_the_intercept_are_refused():
    columns = np.column_stack([DRAW.standard_normal(60), np.arange(60) % 2, 1 - np.arange(60) % 2])
    with pytest.raises(NoSolution, match="combinations"):
        reduce(mixed(columns.astype(float)), penalised=False)
