"""The only place where a private value may become public."""
