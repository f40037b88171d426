"""BAMBI at the coordinator."""
