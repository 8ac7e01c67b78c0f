"""The worker: due work, batches, computation and recovery."""
