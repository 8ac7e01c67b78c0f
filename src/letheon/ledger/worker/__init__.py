"""The worker: it decides what is due, applies batches, and cleans up after crashes."""
