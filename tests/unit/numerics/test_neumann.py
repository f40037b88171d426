import numpy as np
import pytest

from parley.numerics.few_shot import TooFewExamples, sample_task
from parley.numerics.neumann import SeriesDiverges, neumann_product, project_ball, residual


def positive_matrix(seed: int, size: int = 5) -> np.ndarray:
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.standard_normal((size, size)))
    return basis @ np.diag(np.linspace(0.5, 2.0, size)) @ basis.T


def test_a_long_series_is_the_inverse_product():
    hessian, b = positive_matrix(0), np.arange(5.0)
    found = neumann_product(lambda v, _: hessian @ v, b, terms=300, tau=0.4)
    np.testing.assert_allclose(found, np.linalg.solve(hessian, b), atol=1e-12)


def test_a_short_series_misses_by_the_remainder_that_the_paper_states():
    hessian, b = positive_matrix(1), np.ones(5)
    found = neumann_product(lambda v, _: hessian @ v, b, terms=7, tau=0.3)
    remainder = np.linalg.matrix_power(np.eye(5) - 0.3 * hessian, 8) @ np.linalg.solve(hessian, b)
    np.testing.assert_allclose(np.linalg.solve(hessian, b) - found, remainder, atol=1e-12)


def test_samples_are_used_once_each_from_the_last_to_the_first():
    used = []

    def product(vector, j):
        used.append(j)
        return vector * j

    found = neumann_product(product, np.ones(1), terms=3, tau=0.1)
    assert used == [3, 2, 1]
    assert found == pytest.approx(0.1 * (1 + 0.7 + 0.7 * 0.8 + 0.7 * 0.8 * 0.9))


def test_a_scale_that_is_too_large_is_refused_with_what_to_do():
    with pytest.raises(SeriesDiverges, match="choose tau"):
        neumann_product(lambda v, _: 10.0 * v, np.ones(3), terms=50, tau=1.0)


def test_the_residual_vanishes_at_the_inverse_product_and_not_at_half_of_it():
    hessian, b = positive_matrix(2), np.ones(5)
    u = np.linalg.solve(hessian, b)
    assert np.linalg.norm(residual(hessian @ u, b)) < 1e-12
    assert np.linalg.norm(residual(hessian @ (u / 2), b)) > 1.0


def test_the_projection_leaves_the_inside_alone_and_puts_the_rest_on_the_sphere():
    inside, outside = np.array([0.3, 0.4]), np.array([3.0, 4.0])
    assert project_ball(inside, 1.0) is inside
    np.testing.assert_allclose(project_ball(outside, 1.0), [0.6, 0.8])


def test_a_task_has_disjoint_support_and_query_of_the_same_turned_classes():
    images = np.zeros((6, 20, 8, 8), dtype=np.uint8)
    for character in range(6):
        images[character, :, 0, :] = 10 * (character + 1)
        images[character, :, 1, 0] = np.arange(20)
    task = sample_task(images, ways=3, shots=2, queries=4, generator=np.random.default_rng(3), rotate=False)
    assert task.support.shape == (6, 8, 8)
    assert task.query.shape == (12, 8, 8)
    for label in range(3):
        support, query = task.support[task.support_labels == label], task.query[task.query_labels == label]
        assert len(np.unique(np.concatenate([support, query])[:, 0, 3])) == 1
        assert len(np.unique(np.concatenate([support, query])[:, 1, 0])) == 6


def test_more_ways_than_classes_are_refused():
    with pytest.raises(TooFewExamples, match="5 ways"):
        sample_task(
            np.zeros((4, 20, 8, 8), dtype=np.uint8),
            ways=5,
            shots=1,
            queries=1,
            generator=np.random.default_rng(0),
        )
