"""Graphs of ONNX: inputs, tables of columns, and what scores mean."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.predictor._answers import Answers

# Operators with double precision: TreeEnsemble is in ai.onnx.ml 5.
_OPSETS = {"": 21, "ai.onnx.ml": 5}
_IR_VERSION = 10


def _import_onnx() -> Any:
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ImportError(
            "to_onnx needs onnx, which is not installed: pip install 'letheon[interop]'",
            name="onnx",
        ) from error
    return onnx


class OnnxTable(NamedTuple):
    """Rows in a graph: one tensor of float64 with all columns, or one tensor per column.

    Attributes
    ----------
    matrix : str or None
        Name of the tensor of shape (n_rows, n_columns); None if the columns are separate.
    columns : tuple of str
        Names of the tensors of shape (n_rows, 1), of numbers or of texts.

    Examples
    --------
    >>> from letheon.predictor import OnnxTable
    >>> OnnxTable(matrix="X").columns
    ()
    """

    matrix: str | None
    columns: tuple[str, ...] = ()


class OnnxGraph:
    """A graph of ONNX that grows node by node. Numbers in it are float64.

    Parameters
    ----------
    dtype : dtype
        Type of the numbers in the inputs, float64 or float32.

    Examples
    --------
    >>> from letheon import DaREForestClassifier
    >>> model = DaREForestClassifier(n_estimators=2, random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> [output.name for output in model.predictor().to_onnx().graph.output]
    ['label', 'probabilities']
    """

    def __init__(self, dtype: "np.dtype[Any]") -> None:
        self._onnx = _import_onnx()
        if dtype not in (np.float64, np.float32):
            raise ValueError(f"dtype={dtype}; expected float64 or float32")
        self._dtype = dtype
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"t{len(self._nodes)}"
        node = self._onnx.helper.make_node(op, list(inputs), [name], domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def constant(self, values: Any) -> str:
        """Add a constant array and return its name; texts are arrays of object."""
        name = f"c{len(self._constants)}"
        self._constants.append(self.tensor(values, name))
        return name

    def tensor(self, values: Any, name: str = "") -> Any:
        """Return an array as an ONNX tensor."""
        array = np.asarray(values)
        if array.dtype.kind in "UT":
            array = array.astype(object)
        return self._onnx.numpy_helper.from_array(array, name)

    def cast(self, name: str, dtype: Any) -> str:
        """Add a conversion to another type."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", name, to=kind)

    def add_inputs(
        self, n_columns: int, names: Sequence[str] | None, texts: Sequence[int]
    ) -> OnnxTable:
        """Declare the inputs: the matrix ``X``, or one input per column if some are texts."""
        if not texts:
            self._inputs.append(self._declare("X", self._dtype, ["n_rows", n_columns]))
            return OnnxTable(self.cast("X", np.float64))
        columns = []
        for column in range(n_columns):
            name = f"x{column}" if names is None else names[column]
            is_text = column in texts
            dtype = np.dtype(object) if is_text else self._dtype
            self._inputs.append(self._declare(name, dtype, ["n_rows", 1]))
            columns.append(name if is_text else self.cast(name, np.float64))
        return OnnxTable(None, tuple(columns))

    def _declare(self, name: str, dtype: "np.dtype[Any]", shape: list[Any]) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return self._onnx.helper.make_tensor_value_info(name, kind, shape)

    def join(self, table: OnnxTable) -> str:
        """Return one matrix with all columns of a table of numbers."""
        if table.matrix is not None:
            return table.matrix
        return self.add("Concat", *table.columns, axis=1)

    def select(self, table: OnnxTable, columns: Sequence[int]) -> OnnxTable:
        """Return some columns of a table."""
        if table.matrix is None:
            return OnnxTable(None, tuple(table.columns[column] for column in columns))
        places = self.constant(np.array(columns, np.int64))
        return OnnxTable(self.add("Gather", table.matrix, places, axis=1))

    def look_up(
        self, column: str, keys: Sequence[Any], values: NDArray[Any], *, is_text: bool
    ) -> str:
        """Replace each value of a column of shape (n_rows, 1) by a row of `values`.

        `values` has one row per key, after the row of all other values. The key None is a missing
        number, or the empty text.
        """
        missing: Any = "" if is_text else np.nan
        row = np.array([missing if key is None else key for key in keys], object)
        known = self.add("Equal", column, self.constant(row if is_text else row.astype(np.float64)))
        if None in keys and not is_text:
            is_missing = self.constant(np.array([key is None for key in keys]))
            known = self.add("Or", known, self.add("And", self.add("IsNaN", column), is_missing))
        matches = self.cast(known, np.float64)
        some = self.add("ReduceMax", matches, self.constant(np.array([1])), keepdims=1)
        other = self.add("Sub", self.constant(np.array([[0.5]])), some)
        place = self.add("ArgMax", self.add("Concat", other, matches, axis=1), axis=1, keepdims=0)
        return self.add("Gather", self.constant(values), place, axis=0)

    def add_answers(self, scores: str, n_scores: int, answers: Answers) -> None:
        """Declare the outputs for scores of shape (n_rows, n_scores)."""
        if answers.classes is None:
            values = self.add("Exp", scores) if answers.kind == "log-values" else scores
            values = self._flatten(values) if n_scores == 1 else values
            self._name_output("value", values, np.dtype(np.float64), min(n_scores, 2))
            return
        classes = self.constant(answers.classes)
        if n_scores == 1 and len(answers.classes) == 2:
            is_larger = self.add("Greater", scores, self.constant(np.array(0.0)))
            place = self._flatten(self.cast(is_larger, np.int64))
        else:
            place = self.add("ArgMax", scores, axis=1, keepdims=0)
        is_text = answers.classes.dtype.kind in "UTO"
        dtype = np.dtype(object) if is_text else answers.classes.dtype
        self._name_output("label", self.add("Gather", classes, place), dtype, 1)
        if answers.has_probabilities:
            shares = self._share(scores, n_scores, answers)
            self._name_output("probabilities", shares, np.dtype(np.float64), 2)
        else:
            self._name_output("scores", scores, np.dtype(np.float64), 2)

    def _flatten(self, column: str) -> str:
        return self.add("Squeeze", column, self.constant(np.array([1])))

    def _share(self, scores: str, n_scores: int, answers: Answers) -> str:
        """Add the class probabilities."""
        assert answers.classes is not None
        if answers.kind == "shares":
            return scores
        if len(answers.classes) == 1:
            return self.add("Exp", self.add("Mul", scores, self.constant(np.array(0.0))))
        if n_scores > 1 and answers.kind != "one-vs-rest":
            return self.add("Softmax", scores, axis=1)
        if n_scores == 1:
            scores = self.add("Concat", self.add("Neg", scores), scores, axis=1)
        shares = self.add("Sigmoid", scores)
        total = self.add("ReduceSum", shares, self.constant(np.array([1])), keepdims=1)
        return self.add("Div", shares, total)

    def _name_output(self, name: str, tensor: str, dtype: "np.dtype[Any]", n_axes: int) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(self._declare(name, dtype, ["n_rows", None][:n_axes]))

    def build(self) -> Any:
        """Return the model, checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "letheon", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid(*each) for each in _OPSETS.items()]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="letheon"
        )
        self._onnx.checker.check_model(model, full_check=False)
        return model
