"""Certificates: facts, claims, statements, receipts, bundles."""
