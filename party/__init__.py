"""The party role: everything that reads an organisation's private features. No network here."""
