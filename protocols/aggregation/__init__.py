"""Secure sums on the wire."""
