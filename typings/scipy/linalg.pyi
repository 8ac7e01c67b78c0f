"""Only what letheon uses."""
