"""A value packed for a journey to another machine, and unpacked as good as new."""

import operator
import pickle
from typing import Any, SupportsIndex

__all__ = ["Parcel"]


def _writable(buffer: Any) -> Any:
    """Return `buffer`, or a copy of it if it may not be written to."""
    view = memoryview(buffer)
    return bytearray(view) if view.readonly else view


class Parcel:
    """A pickled value whose large arrays lie beside the pickle, not in it.

    Packing copies no array. Opening copies only those that arrived read-only, as Ray's do: they
    are windows into the object store, estimators that write to them fail, and rows
    of people would stay in the store for as long as the model lives.

    Parameters
    ----------
    head : bytes
        The pickle (protocol 5) without its large buffers.
    buffers : list of buffer
        The contents of the arrays, in the order in which the pickle asks for them.
    """

    # No __weakref__: joblib's Dask backend scatters what it can refer to weakly, and
    # scattered data is lost with its worker and may travel a second time.
    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: list[Any]) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def pack(cls, value: Any) -> "Parcel":
        """Return `value` as a parcel."""
        # Plain pickle cannot send an estimator that was defined in a notebook.
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        # raw(): flat bytes in memory order, whatever shape the buffer has.
        return cls(head, [pickle.PickleBuffer(buffer.raw()) for buffer in buffers])

    def open(self) -> Any:
        """Return the value; its arrays can be written to."""
        buffers = [_writable(buffer) for buffer in self._buffers]
        # Between processes of one run, like every joblib backend; never from a file.
        return pickle.loads(self._head, buffers=buffers)  # noqa: S301

    def look(self) -> Any:
        """Return the value without a copy; its arrays may be read-only and are not to be kept."""
        return pickle.loads(self._head, buffers=self._buffers)  # noqa: S301

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type["Parcel"], tuple[Any, ...]]:
        """Pickle with the arrays out of band where the pickler can."""
        kind = pickle.PickleBuffer if operator.index(protocol) >= 5 else bytes
        return Parcel, (self._head, [kind(buffer) for buffer in self._buffers])
