// Made-up people for the tests of the forest: rows, targets, weights and ids, and random settings.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "letheon/common/id_table.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon::testing {

inline constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// Repeatable luck: the same numbers on every machine.
class Luck {
 public:
  explicit Luck(std::uint64_t seed) noexcept : seed_(mix64(0x1EAF, seed)) {}

  std::uint64_t next() noexcept { return mix64(seed_, count_++); }
  std::uint32_t below(std::uint64_t n) noexcept { return static_cast<std::uint32_t>(next() % n); }
  bool one_in(std::uint64_t n) noexcept { return below(n) == 0; }
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

// Rows with their owners; a person may own many.
struct People {
  std::size_t n_columns = 1;
  std::vector<float> X{};  // row-major
  std::vector<std::uint32_t> labels{};
  std::vector<double> y{};
  std::vector<std::uint32_t> weights{};
  std::vector<std::uint64_t> owners{};
  bool is_text = false;
  std::vector<std::int64_t> ints{};
  std::vector<std::uint8_t> blob{};
  std::vector<std::int64_t> offsets{};

  [[nodiscard]] std::size_t n_rows() const noexcept { return X.size() / n_columns; }

  [[nodiscard]] letheon::MatrixView matrix() const noexcept {
    const auto item = static_cast<std::ptrdiff_t>(sizeof(float));
    return {reinterpret_cast<const std::byte*>(X.data()), n_rows(), n_columns,
            static_cast<std::ptrdiff_t>(n_columns) * item, item, false};
  }
  [[nodiscard]] letheon::Batch batch() const noexcept {
    return {matrix(), labels, y, weights, owners};
  }
  [[nodiscard]] letheon::IdBatch ids() const noexcept { return {is_text, ints, blob, offsets}; }

  void name(std::span<const std::string> names) {
    is_text = true;
    ints.clear();
    blob.clear();
    offsets.assign(1, 0);
    for (const std::string& text : names) {
      blob.insert(blob.end(), text.begin(), text.end());
      offsets.push_back(static_cast<std::int64_t>(blob.size()));
    }
  }

  [[nodiscard]] std::string text(std::size_t i) const {
    return {blob.begin() + offsets[i], blob.begin() + offsets[i + 1]};
  }

  [[nodiscard]] People take(std::span<const std::size_t> rows) const {
    People taken{.n_columns = n_columns};
    std::vector<std::string> names;
    for (const std::size_t i : rows) {
      const auto begin = X.begin() + static_cast<std::ptrdiff_t>(i * n_columns);
      taken.X.insert(taken.X.end(), begin, begin + static_cast<std::ptrdiff_t>(n_columns));
      append_one(labels, i, taken.labels);
      append_one(y, i, taken.y);
      append_one(weights, i, taken.weights);
      append_one(owners, i, taken.owners);
      append_one(ints, i, taken.ints);
      if (is_text) {
        names.push_back(text(i));
      }
    }
    if (is_text) {
      taken.name(names);
    }
    return taken;
  }

 private:
  template <typename T>
  static void append_one(const std::vector<T>& from, std::size_t i, std::vector<T>& to) {
    if (!from.empty()) {
      to.push_back(from[i]);
    }
  }
};

// What the people are to be like.
struct Shape {
  std::size_t n_rows = 50;
  std::size_t n_columns = 4;
  std::uint32_t n_classes = 2;  // 0: a regression target
  bool missing = false;
  bool weighted = false;
  bool text = false;
};

// A value of a column: columns differ in how many distinct values they have.
inline float random_value(Luck& luck, std::size_t column) {
  switch (column % 5) {
    case 0:
      return static_cast<float>(luck.uniform() * 2.0 - 1.0);
    case 1:
      return static_cast<float>(luck.below(2));
    case 2:
      return static_cast<float>(luck.below(12)) - 6.0f;
    case 3:
      return luck.one_in(6) ? 3.0f : 0.5f;
    default:
      return std::ldexp(static_cast<float>(luck.below(1000)) - 500.0f,
                        static_cast<int>(luck.below(60)) - 30);
  }
}

inline People random_people(Luck& luck, const Shape& shape) {
  People people{.n_columns = shape.n_columns};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shape.n_rows; ++i) {
    double signal = 0.0;
    for (std::size_t j = 0; j < shape.n_columns; ++j) {
      const bool missing = shape.missing && luck.one_in(7);
      people.X.push_back(missing ? kMissing : letheon::canonical(random_value(luck, j)));
      signal += missing || j > 2 ? 0.0 : people.X.back();
    }
    if (shape.n_classes == 0) {
      people.y.push_back(luck.one_in(20) ? 0.0 : signal + luck.uniform());
    } else {
      const bool noise = luck.one_in(4);
      const auto step = static_cast<std::uint32_t>(std::fabs(signal) * 2.0);
      people.labels.push_back((noise ? luck.below(shape.n_classes) : step) % shape.n_classes);
    }
    if (shape.weighted) {
      people.weights.push_back(1 + luck.below(4));
    }
    // Some people own two rows.
    const std::int64_t id = static_cast<std::int64_t>(i - (i % 5 == 4 ? 1 : 0)) * 3 - 40;
    people.ints.push_back(id);
    people.owners.push_back(mix64(7, static_cast<std::uint64_t>(id)));
    names.push_back("person " + std::to_string(id));
  }
  if (shape.text) {
    people.name(names);
  }
  return people;
}

// Settings for such people; `luck` decides about everything that the shape leaves open.
inline forest::Spec random_spec(Luck& luck, const Shape& shape) {
  forest::Spec spec;
  const auto n_columns = static_cast<std::uint32_t>(shape.n_columns);
  spec.criterion = shape.n_classes == 0 ? forest::Criterion::squared_error
                   : luck.one_in(3)     ? forest::Criterion::entropy
                                        : forest::Criterion::gini;
  spec.n_columns = n_columns;
  spec.max_depth = luck.one_in(2) ? forest::kUnlimited : luck.below(7);
  spec.max_features = 1 + luck.below(n_columns);
  spec.n_thresholds = luck.one_in(4) ? forest::kUnlimited : 1 + luck.below(9);
  spec.random_depth = luck.below(3);
  spec.min_samples_split = 1 + luck.below(4);
  spec.min_samples_leaf = luck.one_in(2) ? 1 : 1 + luck.below(4);
  const std::size_t n_trees = 1 + luck.below(4);
  for (std::size_t t = 0; t < n_trees; ++t) {
    spec.tree_keys.push_back(luck.next());
  }
  if (luck.one_in(4)) {
    for (std::size_t t = 0; t < n_trees; ++t) {
      spec.sample_keys.push_back(luck.next());
    }
    spec.sample_limit = luck.next() | std::uint64_t{1} << 62;
  }
  if (luck.one_in(2)) {
    for (std::size_t j = 0; j < shape.n_columns; ++j) {
      spec.categorical.push_back(static_cast<std::uint8_t>(luck.below(2)));
    }
  }
  return spec;
}

inline std::vector<std::uint32_t> counting(std::uint32_t n) {
  std::vector<std::uint32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

}  // namespace letheon::testing
