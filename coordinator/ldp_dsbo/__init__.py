"""LDP-DSBO at the coordinator."""
