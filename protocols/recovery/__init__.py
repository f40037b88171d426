"""Sums that go on without a lost party, on the wire."""
