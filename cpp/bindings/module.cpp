// Hashes, forests and sums for Python: arrays in, arrays out, no rule of its own.
//
// Arguments are never converted (a silent cast would change hashes), and the GIL is released while
// the core works.
#include <algorithm>
#include <string>

#include "arrays.hpp"
#include "letheon/common/discrete.hpp"
#include "letheon/forest/codec.hpp"
#include "letheon/forest/forest.hpp"
#include "letheon/common/gram.hpp"
#include "letheon/common/keyed_hash.hpp"
#include "letheon/common/sums.hpp"

namespace {

using namespace letheon::bindings;

using Hashes = nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>>;

letheon::Key key_of(const nb::bytes& bytes) {
  const letheon::Bytes raw = view(bytes);
  if (raw.size() != 16) {
    throw std::invalid_argument("the key must have 16 bytes");
  }
  return letheon::Key::from_bytes(raw.first<16>());
}

// Runs `fill` on a fresh buffer without the GIL and hands the buffer to NumPy.
template <typename Fill>
Hashes filled(std::size_t size, Fill fill) {
  auto buffer = std::make_unique<std::uint64_t[]>(size);
  {
    nb::gil_scoped_release release;
    fill(std::span<std::uint64_t>(buffer.get(), size));
  }
  std::uint64_t* data = buffer.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  static_cast<void>(buffer.release());  // the capsule owns it now
  return Hashes(data, {size}, owner);
}

std::uint64_t siphash24(const nb::bytes& key, const nb::bytes& message) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes bytes = view(message);
  nb::gil_scoped_release release;
  return letheon::siphash24(parsed, bytes);
}

Hashes hash_ints(const nb::bytes& key, const nb::bytes& prefix, const Input<std::int64_t>& values) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes head = view(prefix);
  return filled(values.shape(0),
                [&](auto out) { letheon::hash_ints(parsed, head, view(values), out); });
}

Hashes hash_texts(const nb::bytes& key, const nb::bytes& prefix, const Input<std::uint8_t>& blob,
                  const Input<std::int64_t>& offsets) {
  const letheon::Key parsed = key_of(key);
  const letheon::Bytes head = view(prefix);
  if (offsets.shape(0) == 0) {
    throw std::invalid_argument("n texts need n + 1 offsets");
  }
  return filled(offsets.shape(0) - 1, [&](auto out) {
    letheon::hash_texts(parsed, head, view(blob), view(offsets), out);
  });
}

Hashes mix64(std::uint64_t key, const Input<std::uint64_t>& bits) {
  const auto values = view(bits);
  return filled(values.size(), [&](auto out) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      out[k] = letheon::mix64(key, values[k]);
    }
  });
}

Hashes mix64_pairs(const Input<std::uint64_t>& keys, const Input<std::uint64_t>& bits) {
  const auto left = view(keys);
  const auto right = view(bits);
  if (left.size() != right.size()) {
    throw std::invalid_argument("one key per value is needed");
  }
  return filled(right.size(), [&](auto out) {
    for (std::size_t k = 0; k < right.size(); ++k) {
      out[k] = letheon::mix64(left[k], right[k]);
    }
  });
}

nb::ndarray<nb::numpy, std::uint32_t, nb::ndim<1>> mix32(std::uint64_t key,
                                                         const Input<std::uint32_t>& bits) {
  const auto values = view(bits);
  std::vector<std::uint32_t> out(values.size());
  for (std::size_t k = 0; k < values.size(); ++k) {
    out[k] = letheon::mix32(key, values[k]);
  }
  return owned(std::move(out), {values.size()});
}

// The forest --------------------------------------------------------------------------------------

using letheon::forest::Forest;
using letheon::forest::Report;
using letheon::forest::Spec;
letheon::forest::Criterion criterion_of(const std::string& name) {
  if (name == "gini") {
    return letheon::forest::Criterion::gini;
  }
  if (name == "entropy") {
    return letheon::forest::Criterion::entropy;
  }
  if (name == "squared_error") {
    return letheon::forest::Criterion::squared_error;
  }
  throw std::invalid_argument("criterion must be gini, entropy or squared_error");
}

void make_spec(Spec* self, const std::string& criterion, std::uint32_t n_columns, int max_depth,
               std::uint32_t max_features, std::uint32_t n_thresholds, std::uint32_t random_depth,
               std::uint32_t min_samples_split, std::uint32_t min_samples_leaf,
               const Input<std::uint64_t>& tree_keys, const Input<std::uint64_t>& sample_keys,
               std::uint64_t sample_limit, std::optional<int> y_exponent,
               std::optional<std::uint32_t> cache_rows, std::optional<std::uint32_t> slack,
               const std::optional<Input<std::uint32_t>>& column_keys,
               const std::optional<Input<std::uint8_t>>& categorical) {
  Spec spec;
  spec.criterion = criterion_of(criterion);
  spec.n_columns = n_columns;
  spec.max_depth = max_depth < 0 ? letheon::forest::kUnlimited
                                 : static_cast<std::uint32_t>(max_depth);
  spec.max_features = max_features;
  spec.n_thresholds = n_thresholds == 0 ? letheon::forest::kUnlimited : n_thresholds;
  spec.random_depth = random_depth;
  spec.min_samples_split = min_samples_split;
  spec.min_samples_leaf = min_samples_leaf;
  spec.tree_keys = copied(tree_keys);
  spec.sample_keys = copied(sample_keys);
  spec.sample_limit = sample_limit;
  spec.y_exponent = y_exponent;
  spec.cache_rows = cache_rows.value_or(spec.cache_rows);
  spec.slack = slack.value_or(spec.slack);
  if (column_keys) {
    spec.column_keys = copied(*column_keys);
  }
  if (categorical) {
    spec.categorical = copied(*categorical);
  }
  spec.validate();
  new (self) Spec(std::move(spec));
}

void fit(Forest& self, LETHEON_BATCH_PARAMETERS, std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  nb::gil_scoped_release release;
  self.fit(batch, n_classes, ids, n_threads);
}

void restore(Forest& self, LETHEON_BATCH_PARAMETERS,
             const std::vector<Input<std::uint8_t>>& trees, std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  std::vector<letheon::Bytes> blocks;
  for (const auto& block : trees) {
    blocks.push_back(view(block));
  }
  nb::gil_scoped_release release;
  self.restore(batch, n_classes, ids, blocks, n_threads);
}

std::pair<std::uint64_t, std::uint64_t> restore_cost(
    const Input<std::uint8_t>& trees, std::uint32_t n_trees, std::uint32_t n_rows,
    std::uint32_t n_columns, std::uint32_t n_classes, bool regression, std::uint64_t text_bytes) {
  const auto cost = letheon::forest::restore_cost(
      view(trees), {n_trees, n_rows, n_columns, n_classes, regression, text_bytes});
  return {cost.bytes, cost.steps};
}

Report learn(Forest& self, LETHEON_BATCH_PARAMETERS, bool eager, std::size_t n_threads) {
  const BatchArrays arrays = LETHEON_BATCH;
  const Batch batch = arrays.batch(self.spec().is_regression());
  const IdBatch ids = arrays.ids();
  nb::gil_scoped_release release;
  return self.learn(batch, n_classes, ids, eager, n_threads);
}

Report forget(Forest& self, const Input<std::uint32_t>& slots, bool eager, std::size_t n_threads) {
  nb::gil_scoped_release release;
  return self.forget(view(slots), eager, n_threads);
}

Report forget_cost(const Forest& self, const Input<std::uint32_t>& slots, std::size_t n_threads) {
  nb::gil_scoped_release release;
  return self.forget_cost(view(slots), n_threads);
}

Report settle(Forest& self, std::size_t n_threads) {
  nb::gil_scoped_release release;
  return self.settle(n_threads);
}

Report reweigh(Forest& self, const Input<std::uint32_t>& before,
               const Input<std::uint32_t>& after) {
  const nb::gil_scoped_release release;
  return self.reweigh(view(before), view(after));
}

bool is_constant(const Forest& self, std::uint32_t column, const Input<std::uint32_t>& without) {
  const nb::gil_scoped_release release;
  return self.is_constant(column, view(without));
}

void move_columns(Forest& self, const Input<std::int64_t>& layout, const Input<std::uint32_t>& keys,
                  const Input<float>& fills, std::uint32_t max_features) {
  const nb::gil_scoped_release release;
  self.move_columns(view(layout), view(keys), view(fills), max_features);
}

auto predict(Forest& self, const Matrix& X, std::size_t n_threads) {
  const MatrixView rows = matrix(X);
  letheon::forest::Answer answer;
  {
    nb::gil_scoped_release release;
    answer = self.predict(rows, n_threads);
  }
  return owned<2>(std::move(answer.values), {rows.n_rows, answer.width});
}

auto apply(Forest& self, const Matrix& X, std::size_t n_threads) {
  const MatrixView rows = matrix(X);
  std::vector<std::int64_t> leaves;
  {
    nb::gil_scoped_release release;
    leaves = self.apply(rows, n_threads);
  }
  return owned<2>(std::move(leaves), {rows.n_rows, self.spec().tree_keys.size()});
}

auto trees(Forest& self, const Input<std::uint32_t>& order, std::size_t n_threads) {
  std::vector<std::uint8_t> bytes;
  {
    nb::gil_scoped_release release;
    bytes = self.trees_bytes(view(order), n_threads);
  }
  const std::size_t n = bytes.size();
  return owned(std::move(bytes), {n});
}

nb::dict tree(Forest& self, std::size_t index) {
  letheon::forest::TreeView found;
  {
    nb::gil_scoped_release release;
    found = self.tree(index);
  }
  const std::size_t n = found.kind.size();
  nb::dict out;
  out["kind"] = owned(std::move(found.kind), {n});
  out["attribute"] = owned(std::move(found.attribute), {n});
  out["threshold"] = owned(std::move(found.threshold), {n});
  out["missing_left"] = owned(std::move(found.missing_left), {n});
  out["left"] = owned(std::move(found.left), {n});
  out["right"] = owned(std::move(found.right), {n});
  out["n_rows"] = owned(std::move(found.n_rows), {n});
  out["weight"] = owned(std::move(found.weight), {n});
  out["values"] = owned<2>(std::move(found.values), {n, found.width});
  return out;
}

auto importances(Forest& self, std::size_t n_threads) {
  std::vector<double> values;
  {
    nb::gil_scoped_release release;
    values = self.importances(n_threads);
  }
  const std::size_t n = values.size();
  return owned(std::move(values), {n});
}

void bind_forest(nb::module_& m) {
  nb::class_<Spec>(m, "ForestSpec", "Settings of a forest.")
      .def("__init__", &make_spec, nb::kw_only(), "criterion"_a, "n_columns"_a, "max_depth"_a,
           "max_features"_a, "n_thresholds"_a, "random_depth"_a, "min_samples_split"_a,
           "min_samples_leaf"_a, "tree_keys"_a.noconvert(), "sample_keys"_a.noconvert(),
           "sample_limit"_a, "y_exponent"_a.none(), "cache_rows"_a.none() = nb::none(),
           "slack"_a.none() = nb::none(), "column_keys"_a.noconvert().none() = nb::none(),
           "categorical"_a.noconvert().none() = nb::none());
  nb::class_<Report>(m, "Report", "What a change did to the trees.")
      .def_ro("rebuilt_rows", &Report::rebuilt_rows)
      .def_ro("rebuilt_nodes", &Report::rebuilt_nodes)
      .def_ro("touched_trees", &Report::touched_trees)
      .def_ro("rescans", &Report::rescans)
      .def_ro("rescaled", &Report::rescaled)
      .def_ro("emptied", &Report::emptied);
  m.def("restore_cost", &restore_cost, "trees"_a.noconvert(), "n_trees"_a, "n_rows"_a,
        "n_columns"_a, "n_classes"_a, "regression"_a, "text_bytes"_a,
        "Bytes of memory and steps that restoring a forest takes at most.");
  nb::class_<Forest>(m, "Forest", "Rows, ids and trees; see letheon.forest.")
      .def("__init__",
           [](Forest* self, const Spec& spec) { new (self) Forest(spec, random_key()); }, "spec"_a)
      .def("fit", &fit, LETHEON_BATCH_NAMES, "n_threads"_a)
      .def("restore", &restore, LETHEON_BATCH_NAMES, "trees"_a.noconvert(), "n_threads"_a)
      .def("learn", &learn, LETHEON_BATCH_NAMES, "eager"_a, "n_threads"_a)
      .def("find_ints", &find_ints<Forest>, "values"_a.noconvert())
      .def("find_texts", &find_texts<Forest>, "blob"_a.noconvert(), "offsets"_a.noconvert())
      .def("forget", &forget, "slots"_a.noconvert(), "eager"_a, "n_threads"_a)
      .def("forget_cost", &forget_cost, "slots"_a.noconvert(), "n_threads"_a)
      .def("settle", &settle, "n_threads"_a)
      .def("reweigh", &reweigh, "before"_a.noconvert(), "after"_a.noconvert())
      .def("copy_rows", &copy_rows<Forest>, "slots"_a.noconvert())
      .def("is_constant", &is_constant, "column"_a, "without"_a.noconvert())
      .def("move_columns", &move_columns, "layout"_a.noconvert(), "keys"_a.noconvert(),
           "fills"_a.noconvert(), "max_features"_a)
      .def("predict", &predict, "X"_a.noconvert(), "n_threads"_a)
      .def("apply", &apply, "X"_a.noconvert(), "n_threads"_a)
      .def("rows", &rows<Forest>, "order"_a.noconvert())
      .def("ids", &ids<Forest>)
      .def("trees", &trees, "order"_a.noconvert(), "n_threads"_a)
      .def("tree", &tree, "index"_a)
      .def("importances", &importances, "n_threads"_a)
      .def("class_counts", &class_counts<Forest>)
      .def_prop_ro("n_rows", &Forest::n_rows, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("n_unbuilt", &Forest::n_unbuilt, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("n_nodes", &Forest::n_nodes, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("n_done", &Forest::n_done)
      .def_prop_ro("n_bytes", &Forest::n_bytes, nb::call_guard<nb::gil_scoped_release>());
}

// Sums --------------------------------------------------------------------------------------------

using letheon::sums::ColumnSums;
using Doubles = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

letheon::sums::Block block_of(const ColumnSums& self, const Doubles& X) {
  if (X.shape(1) != self.n_columns()) {
    throw std::invalid_argument("X has another number of columns than the sums");
  }
  return {X.data(), X.shape(0)};
}

void add_rows(ColumnSums& self, const Doubles& X) {
  const letheon::sums::Block block = block_of(self, X);
  nb::gil_scoped_release release;
  self.add(block);
}

void subtract_rows(ColumnSums& self, const Doubles& X) {
  const letheon::sums::Block block = block_of(self, X);
  nb::gil_scoped_release release;
  self.subtract(block);
}

void change_sparse(ColumnSums& self, const Input<std::int64_t>& begins,
                   const Input<std::int64_t>& columns, const Input<double>& values, bool is_added) {
  const letheon::sums::SparseBlock block{view(begins), view(columns), view(values)};
  nb::gil_scoped_release release;
  if (is_added) {
    self.add(block);
  } else {
    self.subtract(block);
  }
}

// Runs a const method that returns a vector without the GIL; `width` values per column.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> vector_of(const ColumnSums& self,
                                                 std::vector<T> (ColumnSums::*method)() const) {
  std::vector<T> values;
  {
    nb::gil_scoped_release release;
    values = (self.*method)();
  }
  const std::size_t n = values.size();
  return owned(std::move(values), {n});
}

auto counts_of(const ColumnSums& self) {
  std::vector<std::int64_t> counts(self.counts().begin(), self.counts().end());
  const std::size_t n = counts.size();
  return owned(std::move(counts), {n});
}

nb::tuple round_columns(const ColumnSums& self, const Input<std::uint64_t>& scale_dithers,
                        const Input<std::uint64_t>& centre_dithers, int centre_bits,
                        int scale_step) {
  letheon::sums::LocationScale rounded;
  {
    nb::gil_scoped_release release;
    rounded = self.round(view(scale_dithers), view(centre_dithers), {centre_bits, scale_step});
  }
  const std::size_t n = self.n_columns();
  return nb::make_tuple(owned(std::move(rounded.centres), {n}),
                        owned(std::move(rounded.exponents), {n}));
}

Hashes powers_of_two(const Input<std::uint64_t>& dithers) {
  const auto values = view(dithers);
  return filled(values.size(), [&](auto out) {
    std::transform(values.begin(), values.end(), out.begin(), letheon::sums::power_of_two);
  });
}

template <typename T>
using Strided = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;

template <typename T>
letheon::sums::Columns<T> columns_of(const Strided<T>& array) {
  if (array.shape(0) > 0 && array.shape(1) > 1 && array.stride(1) != 1) {
    throw std::invalid_argument("the values of a row must follow each other");
  }
  return {array.data(), array.shape(0), array.shape(1), static_cast<std::size_t>(array.stride(0))};
}

template <typename T>
std::span<T> span_of(const nb::ndarray<T, nb::c_contig, nb::device::cpu>& array) {
  return {array.data(), array.size()};
}

void quantise(const Strided<const double>& X, const Input<double>& factors,
              const Input<double>& shifts, const std::optional<Input<double>>& roots,
              const Strided<double>& high, const Strided<double>& low,
              const nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>& n_clipped) {
  const auto rows = columns_of(X);
  const auto high_rows = columns_of(high);
  const auto low_rows = columns_of(low);
  const std::span<const double> weights = roots ? view(*roots) : std::span<const double>();
  nb::gil_scoped_release release;
  letheon::sums::quantise(rows, view(factors), view(shifts), weights, high_rows, low_rows,
                          span_of(n_clipped));
}

void add_products(const Strided<const double>& high, const Strided<const double>& low,
                  std::int64_t sign,
                  const nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>& products) {
  const auto high_rows = columns_of(high);
  const auto low_rows = columns_of(low);
  nb::gil_scoped_release release;
  letheon::sums::add_products(high_rows, low_rows, sign, span_of(products));
}

void add_sparse_products(
    const Input<std::int64_t>& begins, const Input<std::int64_t>& columns,
    const Input<std::int64_t>& high, const Input<std::int64_t>& low, std::int64_t sign,
    std::size_t n_columns,
    const nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>& products,
    const std::optional<nb::ndarray<double, nb::c_contig, nb::device::cpu>>& floats) {
  const std::span<double> numbers = floats ? span_of(*floats) : std::span<double>();
  nb::gil_scoped_release release;
  letheon::sums::add_sparse_products(view(begins), view(columns), view(high), view(low), sign,
                                     n_columns, span_of(products), numbers);
}

void bind_sums(nb::module_& m) {
  m.def("quantise", &quantise, "X"_a.noconvert(), "factors"_a.noconvert(), "shifts"_a.noconvert(),
        "roots"_a.noconvert().none(), "high"_a.noconvert(), "low"_a.noconvert(),
        "n_clipped"_a.noconvert(), "Write rows on a grid as two slices of 16 bits.");
  m.def("add_products", &add_products, "high"_a.noconvert(), "low"_a.noconvert(), "sign"_a,
        "products"_a.noconvert(), "Add the products of the columns of some rows to integers.");
  m.def("powers_of_two", &powers_of_two, "dithers"_a.noconvert(),
        "2^(dither / 2^64) of each value, in units of 2^-63, by integer arithmetic.");
  m.def("add_sparse_products", &add_sparse_products, "begins"_a.noconvert(),
        "columns"_a.noconvert(), "high"_a.noconvert(), "low"_a.noconvert(), "sign"_a,
        "n_columns"_a, "products"_a.noconvert(), "floats"_a.noconvert().none(),
        "Add the products of the columns of some sparse rows to integers.");
  m.def("read_column_sums",
        [](const Input<std::int64_t>& counts, const Input<std::uint8_t>& sums,
           const Input<std::uint8_t>& squares) {
          return ColumnSums(view(counts), view(sums), view(squares));
        },
        "counts"_a.noconvert(), "sums"_a.noconvert(), "squares"_a.noconvert(),
        "Read what `sum_bytes` and `square_bytes` wrote.");
  nb::class_<ColumnSums>(m, "ColumnSums", "Exact sums of columns; see letheon.sums.")
      .def(nb::init<std::size_t>(), "n_columns"_a)
      .def("add", &add_rows, "X"_a.noconvert())
      .def("subtract", &subtract_rows, "X"_a.noconvert())
      .def("change_sparse", &change_sparse, "begins"_a.noconvert(), "columns"_a.noconvert(),
           "values"_a.noconvert(), "is_added"_a)
      .def("select",
           [](const ColumnSums& self, const Input<std::int64_t>& columns) {
             return self.select(view(columns));
           },
           "columns"_a.noconvert())
      .def("put",
           [](ColumnSums& self, const Input<std::int64_t>& columns, const ColumnSums& other) {
             self.put(view(columns), other);
           },
           "columns"_a.noconvert(), "other"_a)
      .def("counts", &counts_of)
      .def("sum_bytes", [](const ColumnSums& self) { return vector_of(self, &ColumnSums::sum_bytes); })
      .def("square_bytes",
           [](const ColumnSums& self) { return vector_of(self, &ColumnSums::square_bytes); })
      .def("sums", [](const ColumnSums& self) { return vector_of(self, &ColumnSums::sums); })
      .def("means", [](const ColumnSums& self) { return vector_of(self, &ColumnSums::means); })
      .def("variances",
           [](const ColumnSums& self) { return vector_of(self, &ColumnSums::variances); })
      .def("round", &round_columns, "scale_dithers"_a.noconvert(), "centre_dithers"_a.noconvert(),
           "centre_bits"_a, "scale_step"_a)
      .def_prop_ro("n_columns", &ColumnSums::n_columns);
}

// Integers of a discrete law: as many as are wanted, or those before one that floats cannot decide.
nb::object keep_candidates(bool is_normal, std::int64_t scale, const Input<std::uint64_t>& words,
                           std::size_t n_wanted) {
  std::vector<std::int64_t> kept(std::min(n_wanted, words.size()));
  const auto law = is_normal ? letheon::Law::normal : letheon::Law::laplace;
  kept.resize(letheon::keep_candidates(law, scale, view(words), kept));
  const std::size_t n = kept.size();
  return nb::cast(owned(std::move(kept), {n}));
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled core of letheon; private. See letheon.seeds for the rules.";
  m.def("siphash24", &siphash24, "key"_a.noconvert(), "message"_a.noconvert(),
        "SipHash-2-4 of one message under a key of 16 bytes.");
  m.def("hash_ints", &hash_ints, "key"_a.noconvert(), "prefix"_a.noconvert(),
        "values"_a.noconvert(), "SipHash-2-4 of the prefix followed by each framed int.");
  m.def("hash_texts", &hash_texts, "key"_a.noconvert(), "prefix"_a.noconvert(),
        "blob"_a.noconvert(), "offsets"_a.noconvert(),
        "SipHash-2-4 of the prefix followed by each framed text.");
  m.def("mix64", &mix64, "key"_a.noconvert(), "bits"_a.noconvert(),
        "Mix each value with one key.");
  m.def("mix32", &mix32, "key"_a, "bits"_a.noconvert(), "Mix each 32-bit value with one key.");
  m.def("mix64_pairs", &mix64_pairs, "keys"_a.noconvert(), "bits"_a.noconvert(),
        "Mix each value with its own key.");
  m.def("keep_candidates", &keep_candidates, "is_normal"_a, "scale"_a, "words"_a.noconvert(),
        "n_wanted"_a, "Integers of a discrete law, of two candidates for every three words.");
  bind_forest(m);
  letheon::bindings::bind_boosting(m);
  letheon::bindings::bind_flat(m);
  letheon::bindings::bind_index(m);
  bind_sums(m);
}
