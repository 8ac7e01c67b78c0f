"""Erasure requests: intake, states, deadlines and lists."""
