"""HGP at a party."""
