"""Requests: intake, states, deadlines, lists."""
