"""Parley: federated bilevel learning between organisations that may not share their data."""
