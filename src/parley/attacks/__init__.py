"""Attacks on what crosses: what an adversary recovers, against what the settings guarantee."""
