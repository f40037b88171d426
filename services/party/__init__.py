"""The party service: one per organisation, beside its data."""
