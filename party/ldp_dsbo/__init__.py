"""LDP-DSBO at a party."""
