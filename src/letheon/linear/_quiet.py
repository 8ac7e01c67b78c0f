"""Objects on the way that hold secrets: a traceback or a log must not spell them out."""


class Quiet:
    """Shows its class and nothing else."""

    def __repr__(self) -> str:
        return quiet_repr(self)


def quiet_repr(value: object) -> str:
    """Return the name of the class, for named tuples too."""
    return f"<{type(value).__name__}>"
