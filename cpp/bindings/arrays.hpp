// Arrays in, arrays out: what the bindings of all models share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "letheon/common/id_table.hpp"
#include "letheon/common/keyed_hash.hpp"
#include "letheon/common/row_views.hpp"
#include "letheon/common/table.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace letheon::bindings {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.shape(0)};
}

inline letheon::Bytes view(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Hands a vector to NumPy without a copy.
template <std::size_t N = 1, typename T>
nb::ndarray<nb::numpy, T, nb::ndim<N>> owned(std::vector<T>&& values,
                                             std::initializer_list<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* data = kept->data();
  nb::capsule owner(kept.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  static_cast<void>(kept.release());  // the capsule owns it now
  return nb::ndarray<nb::numpy, T, nb::ndim<N>>(data, shape, owner);
}

using letheon::Batch;
using letheon::IdBatch;
using letheon::MatrixView;

using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
// A sparse matrix by columns: values, rows of the values, begins of the columns, number of rows.
using SparseMatrix =
    std::tuple<Input<double>, Input<std::int64_t>, Input<std::int64_t>, std::size_t>;
using AnyMatrix = std::variant<Matrix, SparseMatrix>;

template <typename T>
std::vector<T> copied(const Input<T>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

inline MatrixView matrix(const Matrix& X) {
  const bool is_double = X.dtype() == nb::dtype<double>();
  if (!is_double && X.dtype() != nb::dtype<float>()) {
    throw std::invalid_argument("X must be float32 or float64");
  }
  const auto item = static_cast<std::ptrdiff_t>(is_double ? sizeof(double) : sizeof(float));
  return {static_cast<const std::byte*>(X.data()), X.shape(0), X.shape(1), X.stride(0) * item,
          X.stride(1) * item, is_double};
}

inline MatrixView any_matrix(const AnyMatrix& X) {
  if (const auto* dense = std::get_if<Matrix>(&X)) {
    return matrix(*dense);
  }
  const auto& [values, places, begins, n_rows] = std::get<SparseMatrix>(X);
  if (begins.shape(0) == 0 || values.shape(0) != places.shape(0)) {
    throw std::invalid_argument("the columns of a sparse X are damaged");
  }
  constexpr auto item = static_cast<std::ptrdiff_t>(sizeof(double));
  return {reinterpret_cast<const std::byte*>(values.data()), n_rows, begins.shape(0) - 1, item, 0,
          true, view(begins), view(places)};
}

// Ids as they come from Python: ints, or texts as one buffer with offsets.
inline IdBatch id_batch(const std::optional<Input<std::int64_t>>& values,
                        const std::optional<Input<std::uint8_t>>& blob,
                        const std::optional<Input<std::int64_t>>& offsets) {
  IdBatch ids;
  ids.is_text = !values.has_value();
  if (values) {
    ids.ints = view(*values);
  } else if (blob && offsets) {
    ids.blob = view(*blob);
    ids.offsets = view(*offsets);
  } else {
    throw std::invalid_argument("ids are ints, or a blob with offsets");
  }
  return ids;
}

// The arrays of one batch as they come from Python; they must outlive the views.
struct BatchArrays {
  const AnyMatrix& X;
  const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>& target;
  const std::optional<Input<std::uint32_t>>& weights;
  const std::optional<Input<std::int64_t>>& ids_values;
  const std::optional<Input<std::uint8_t>>& ids_blob;
  const std::optional<Input<std::int64_t>>& ids_offsets;
  const Input<std::uint64_t>& owners;

  [[nodiscard]] Batch batch(bool regression) const {
    Batch batch;
    batch.X = any_matrix(X);
    if (regression) {
      if (target.dtype() != nb::dtype<double>()) {
        throw std::invalid_argument("a regression target must be float64");
      }
      batch.y = {static_cast<const double*>(target.data()), target.shape(0)};
    } else {
      if (target.dtype() != nb::dtype<std::uint32_t>()) {
        throw std::invalid_argument("class codes must be uint32");
      }
      batch.labels = {static_cast<const std::uint32_t*>(target.data()), target.shape(0)};
    }
    if (weights) {
      batch.weights = view(*weights);
    }
    batch.owners = view(owners);
    return batch;
  }

  [[nodiscard]] IdBatch ids() const { return id_batch(ids_values, ids_blob, ids_offsets); }
};

#define LETHEON_BATCH_PARAMETERS                                                                  \
  const AnyMatrix &X,                                                                             \
      const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>&target,               \
      std::uint32_t n_classes, const std::optional<Input<std::uint32_t>>&weights,                 \
      const std::optional<Input<std::int64_t>>&ids_values,                                        \
      const std::optional<Input<std::uint8_t>>&ids_blob,                                          \
      const std::optional<Input<std::int64_t>>&ids_offsets, const Input<std::uint64_t>&owners
#define LETHEON_BATCH BatchArrays{X, target, weights, ids_values, ids_blob, ids_offsets, owners}
#define LETHEON_BATCH_NAMES                                                                  \
  "X"_a.noconvert(), "target"_a.noconvert(), "n_classes"_a, "weights"_a.noconvert().none(), \
      "ids_values"_a.noconvert().none(), "ids_blob"_a.noconvert().none(),                   \
      "ids_offsets"_a.noconvert().none(), "owners"_a.noconvert()

// Drawn per object, so that an attacker cannot choose ids that collide.
inline letheon::Key random_key() {
  std::random_device device;
  const auto word = [&] { return std::uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

template <typename T>
nb::object vector_or_none(std::vector<T>&& values, bool given) {
  const std::size_t n = values.size();
  return given ? nb::cast(owned(std::move(values), {n})) : nb::none();
}

inline void put_ids(nb::dict& out, letheon::RowsView&& found) {
  out["ids_values"] = vector_or_none(std::move(found.ints), !found.is_text);
  out["ids_blob"] = vector_or_none(std::move(found.blob), found.is_text);
  out["ids_offsets"] = vector_or_none(std::move(found.offsets), found.is_text);
}

template <typename Model>
nb::tuple find(const Model& self, const IdBatch& wanted) {
  letheon::Found found;
  {
    nb::gil_scoped_release release;
    found = self.find(wanted);
  }
  std::vector<std::int64_t> missing(found.missing.begin(), found.missing.end());
  const std::size_t n_slots = found.slots.size();
  const std::size_t n_missing = missing.size();
  return nb::make_tuple(owned(std::move(found.slots), {n_slots}),
                        owned(std::move(missing), {n_missing}));
}

template <typename Model>
nb::tuple find_ints(const Model& self, const Input<std::int64_t>& values) {
  IdBatch wanted;
  wanted.ints = view(values);
  return find(self, wanted);
}

template <typename Model>
nb::tuple find_texts(const Model& self, const Input<std::uint8_t>& blob,
                     const Input<std::int64_t>& offsets) {
  IdBatch wanted;
  wanted.is_text = true;
  wanted.blob = view(blob);
  wanted.offsets = view(offsets);
  return find(self, wanted);
}

template <typename Model>
nb::dict rows(const Model& self, const Input<std::uint32_t>& order) {
  letheon::RowsView found;
  {
    nb::gil_scoped_release release;
    found = self.rows(view(order));
  }
  const std::size_t n = found.weights.size();
  nb::dict out;
  out["X"] = owned<2>(std::move(found.X), {n, self.spec().n_columns});
  out["target"] = self.spec().is_regression() ? vector_or_none(std::move(found.y), true)
                                              : vector_or_none(std::move(found.labels), true);
  out["weights"] = owned(std::move(found.weights), {n});
  put_ids(out, std::move(found));
  return out;
}

template <typename Model>
nb::dict ids(const Model& self) {
  letheon::RowsView found;
  {
    nb::gil_scoped_release release;
    found = self.ids();
  }
  nb::dict out;
  put_ids(out, std::move(found));
  return out;
}

template <typename Model>
auto class_counts(const Model& self) {
  std::vector<std::int64_t> counts;
  {
    nb::gil_scoped_release release;
    counts = self.class_counts();
  }
  const std::size_t n = counts.size();
  return owned(std::move(counts), {n});
}

template <typename Model>
nb::tuple copy_rows(const Model& self, const Input<std::uint32_t>& slots) {
  letheon::RowBlock block;
  {
    const nb::gil_scoped_release release;
    block = self.copy_rows(view(slots));
  }
  const std::size_t n = block.slots.size();
  std::vector<std::int64_t> labels(block.labels.begin(), block.labels.end());
  return nb::make_tuple(owned<2>(std::move(block.x), {n, block.n_columns}),
                        owned(std::move(labels), {n}));
}

void bind_boosting(nb::module_& m);
void bind_flat(nb::module_& m);
void bind_index(nb::module_& m);

}  // namespace letheon::bindings
