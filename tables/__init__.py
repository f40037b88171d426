"""Tables of features and labels: files in, arrays under sorted identities out. Both roles read them."""
