"""What pytest leaves out where an optional package is not installed."""

from importlib.util import find_spec

# Doctests of the nets; tests/deep has a conftest of its own.
collect_ignore = [] if find_spec("torch") else ["src/letheon/deep"]
