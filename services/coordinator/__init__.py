"""The coordinator service: run registry, drivers, and the client API."""
