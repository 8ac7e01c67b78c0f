"""Keys of a ledger: encryption at rest, signing, and key files."""
