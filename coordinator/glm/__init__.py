"""Generalised linear models at the coordinator."""
