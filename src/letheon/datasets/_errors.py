"""What can be wrong with the files of a dataset."""

from letheon.exceptions import LetheonError

__all__ = ["DatasetFormatError", "DatasetMissingError"]


class DatasetMissingError(LetheonError, FileNotFoundError):
    """Files of a dataset are not there; the text says which, from whom, and where to put them."""

    # An OSError of one argument prints its text; `filename` stays None.


class DatasetFormatError(LetheonError, ValueError):
    """A file is not the one that the provider publishes: other content, shape or values."""
