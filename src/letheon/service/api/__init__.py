"""Routes that move to `routes`."""
