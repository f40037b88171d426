"""Arrays on the wire."""
