"""A relay: carries the bytes of connections to organisations into which nobody can dial."""
