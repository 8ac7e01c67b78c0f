// Trees of predictors for Python.
#include "arrays.hpp"
#include "letheon/forest/flat.hpp"

namespace letheon::bindings {

namespace {

auto find_leaves(const Input<std::int64_t>& begins, const Input<std::int32_t>& columns,
                 const Input<float>& thresholds, const Input<std::int32_t>& rights,
                 const Input<std::uint8_t>& missing_left, const Input<std::uint8_t>& categorical,
                 const Matrix& X, std::size_t n_threads) {
  const forest::FlatTrees trees{view(begins), view(columns),      view(thresholds),
                                view(rights), view(missing_left), view(categorical)};
  const MatrixView rows = matrix(X);
  std::vector<std::int32_t> leaves;
  const std::size_t n_trees = begins.shape(0) > 0 ? begins.shape(0) - 1 : 0;
  {
    nb::gil_scoped_release release;
    leaves.resize(rows.n_rows * n_trees);
    forest::find_flat_leaves(trees, rows, n_threads, leaves.data());
  }
  return owned<2>(std::move(leaves), {n_trees, rows.n_rows});
}

}  // namespace

void bind_flat(nb::module_& m) {
  m.def("find_leaves", &find_leaves, "begins"_a.noconvert(), "columns"_a.noconvert(),
        "thresholds"_a.noconvert(), "rights"_a.noconvert(), "missing_left"_a.noconvert(),
        "categorical"_a.noconvert(), "X"_a.noconvert(), "n_threads"_a,
        "Leaf of each row (second axis) in each tree (first axis), as numbers of nodes.");
}

}  // namespace letheon::bindings
