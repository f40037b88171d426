"""The coordinator role: everything that reads released sums and, through the gate, labels. No network here."""
