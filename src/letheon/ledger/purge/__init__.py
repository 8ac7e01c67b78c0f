"""Purge: destruction, search for residue, attestation."""
