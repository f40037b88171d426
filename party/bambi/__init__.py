"""BAMBI at a party."""
