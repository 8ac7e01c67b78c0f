"""Save and load models: files around `letheon.state`; no pickle."""

from letheon.persist._files import FileInfo, inspect, load, save

__all__ = ["FileInfo", "inspect", "load", "save"]
