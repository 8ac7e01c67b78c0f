"""Keys: encryption at rest, signing, key files."""
