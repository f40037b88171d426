"""Databases that services keep their state in: their schemas' versions and upgrades."""
