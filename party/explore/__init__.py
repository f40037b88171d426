"""Figures of columns at a party."""
