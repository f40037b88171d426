"""The coordinator's web page."""
