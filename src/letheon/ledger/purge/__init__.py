"""Purges: destroy remaining data of erased people, search for residue, sign an attestation."""
