// Vector indexes for Python.
#include <string>

#include "arrays.hpp"
#include "letheon/index/index.hpp"

namespace letheon::bindings {

namespace {

using index::ChangeReport;
using index::Hits;
using index::Index;
using index::Kind;
using index::Metric;
using index::Spec;

Metric metric_of(const std::string& name) {
  if (name == "euclidean") {
    return Metric::l2;
  }
  if (name == "cosine") {
    return Metric::cosine;
  }
  if (name == "inner_product") {
    return Metric::inner_product;
  }
  throw std::invalid_argument("metric must be euclidean, cosine or inner_product");
}

void make_index(Index* self, const std::string& metric, const std::string& dtype,
                std::uint32_t n_columns, double step, bool keeps_rows, const std::string& path) {
  if (dtype != "int8" && dtype != "int16") {
    throw std::invalid_argument("dtype must be int8 or int16");
  }
  const Kind kind = dtype == "int8" ? Kind::int8 : Kind::int16;
  new (self) Index({n_columns, kind, metric_of(metric), step, keeps_rows, path}, random_key());
}

ChangeReport add_rows(Index& self, const Matrix& X, bool is_grid,
                      const std::optional<Input<double>>& target,
                      const std::optional<Input<std::int64_t>>& ids_values,
                      const std::optional<Input<std::uint8_t>>& ids_blob,
                      const std::optional<Input<std::int64_t>>& ids_offsets,
                      const Input<std::uint64_t>& owners, std::size_t n_pivots,
                      std::size_t n_threads) {
  const IdBatch ids = id_batch(ids_values, ids_blob, ids_offsets);
  index::RowsToAdd rows{matrix(X), is_grid, view(owners), {}};
  if (target) {
    rows.target = view(*target);
  }
  nb::gil_scoped_release release;
  return self.add(rows, ids, n_pivots, n_threads);
}

ChangeReport forget_rows(Index& self, const Input<std::uint32_t>& slots, std::size_t n_pivots,
                         std::size_t n_threads) {
  nb::gil_scoped_release release;
  return self.forget(view(slots), n_pivots, n_threads);
}

nb::dict query_index(const Index& self, const Matrix& X, std::size_t k, std::size_t n_probe,
                     const std::optional<Input<std::uint8_t>>& allowed, std::size_t n_threads) {
  const MatrixView rows = matrix(X);
  index::QueryPlan plan{k, n_probe, {}, n_threads};
  if (allowed) {
    plan.allowed = view(*allowed);
  }
  Hits hits;
  {
    nb::gil_scoped_release release;
    hits = self.query(rows, plan);
  }
  nb::dict out;
  const bool has_target = !hits.target.empty();
  const std::size_t n = hits.target.size();
  out["distances"] = owned<2>(std::move(hits.distances), {rows.n_rows, k});
  out["numbers"] = owned<2>(std::move(hits.numbers), {rows.n_rows, k});
  out["target"] = has_target ? nb::cast(owned(std::move(hits.target), {n})) : nb::none();
  out["n_scanned"] = hits.n_scanned;
  put_ids(out, std::move(hits.ids));
  return out;
}

nb::dict rows_of_index(const Index& self) {
  index::IndexRows rows;
  {
    nb::gil_scoped_release release;
    rows = self.rows();
  }
  const std::size_t n = rows.cells.size();
  const std::size_t n_columns = self.spec().n_columns;
  nb::dict out;
  out["X"] = self.spec().keeps_rows ? nb::cast(owned<2>(std::move(rows.X), {n, n_columns}))
                                    : nb::cast(owned<2>(std::move(rows.grid), {n, n_columns}));
  out["target"] = vector_or_none(std::move(rows.target), n > 0 && !rows.target.empty());
  out["cells"] = owned(std::move(rows.cells), {n});
  put_ids(out, std::move(rows.ids));
  return out;
}

nb::tuple copy_rows_of_index(const Index& self, const Input<std::uint32_t>& slots) {
  index::LeavingRows rows;
  {
    nb::gil_scoped_release release;
    rows = self.copy_rows(view(slots));
  }
  const std::size_t n = rows.X.size();
  const std::size_t n_targets = rows.target.size();
  return nb::make_tuple(owned(std::move(rows.X), {n}), owned(std::move(rows.target), {n_targets}));
}

}  // namespace

void bind_index(nb::module_& m) {
  nb::class_<ChangeReport>(m, "IndexReport", "What a change did to the cells of an index.")
      .def_ro("n_pivots", &ChangeReport::n_pivots)
      .def_ro("n_moved", &ChangeReport::n_moved);
  nb::class_<Index>(m, "Index", "Rows, ids and cells; see letheon.neighbors.")
      .def("__init__", &make_index, nb::kw_only(), "metric"_a, "dtype"_a, "n_columns"_a, "step"_a,
           "keeps_rows"_a, "path"_a)
      .def("add", &add_rows, "X"_a.noconvert(), "is_grid"_a, "target"_a.noconvert().none(),
           "ids_values"_a.noconvert().none(), "ids_blob"_a.noconvert().none(),
           "ids_offsets"_a.noconvert().none(), "owners"_a.noconvert(), "n_pivots"_a,
           "n_threads"_a)
      .def("forget", &forget_rows, "slots"_a.noconvert(), "n_pivots"_a, "n_threads"_a)
      .def("query", &query_index, "X"_a.noconvert(), "k"_a, "n_probe"_a,
           "allowed"_a.noconvert().none(), "n_threads"_a)
      .def("find_ints", &find_ints<Index>, "values"_a.noconvert())
      .def("find_texts", &find_texts<Index>, "blob"_a.noconvert(), "offsets"_a.noconvert())
      .def("ids", &ids<Index>)
      .def("rows", &rows_of_index)
      .def("copy_rows", &copy_rows_of_index, "slots"_a.noconvert())
      .def_prop_ro("n_rows", &Index::n_rows, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("n_pivots", &Index::n_pivots, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace letheon::bindings
