"""The worker: what is due, batches, computation, recovery."""
