"""What pytest leaves out where an optional package is not installed."""

from importlib.util import find_spec

# Doctests of the nets; tests/deep has a conftest of its own. letheon.mlflow has none, and importing
# MLflow takes seconds.
collect_ignore = ["src/letheon/mlflow.py"]
collect_ignore += [] if find_spec("torch") else ["src/letheon/deep"]
collect_ignore += [] if find_spec("fastapi") else ["src/letheon/service", "tests/service"]
