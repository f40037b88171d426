"""Generalised linear models at a party."""
