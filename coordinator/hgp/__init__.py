"""HGP at the coordinator."""
