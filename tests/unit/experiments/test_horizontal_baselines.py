"""The baselines beside the FedBiO family."""

import numpy as np

from parley.experiments.horizontal_baselines import largest_entries


def test_compression_sends_the_largest_entries_and_nothing_else():
    vector = np.array([0.1, -3.0, 2.0, 0.0, -0.5])
    np.testing.assert_array_equal(largest_entries(vector, 0.4), [0, -3, 2, 0, 0])
    np.testing.assert_array_equal(largest_entries(vector, 1.0), vector)
    assert np.count_nonzero(largest_entries(vector, 0.01)) == 1
