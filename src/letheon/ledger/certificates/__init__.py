"""Certificates of erasure: facts, claims, statements, receipts and bundles."""
