"""Figures of columns at the coordinator."""
