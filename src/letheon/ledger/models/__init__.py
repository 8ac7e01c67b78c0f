"""Models of a ledger and their versions: register them, commit to their rows, read them."""
