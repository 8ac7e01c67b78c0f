// Settings of a forest: everything that, with the rows, determines the trees.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace letheon::forest {

enum class Criterion : std::uint8_t { gini, entropy, squared_error };

inline constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kNoColumn = std::numeric_limits<std::uint32_t>::max();

struct Spec {
  Criterion criterion = Criterion::gini;
  std::uint32_t n_columns = 0;
  std::uint32_t max_depth = kUnlimited;
  std::uint32_t max_features = 1;
  std::uint32_t n_thresholds = kUnlimited;  // the survey's k
  std::uint32_t random_depth = 0;           // the survey's d_rmax
  std::uint32_t min_samples_split = 2;
  std::uint32_t min_samples_leaf = 1;
  std::vector<std::uint64_t> tree_keys;    // key of each root
  std::vector<std::uint64_t> sample_keys;  // empty: every row is in every tree
  std::uint64_t sample_limit = 0;
  std::optional<int> y_exponent;           // fixed scale of a regression target
  // What the draws of a node call each column; empty: its number. With keys, a column that is
  // constant in all rows can leave or come without a change of any other draw.
  std::vector<std::uint32_t> column_keys;
  // Columns whose values are categories: a node asks whether x is one of them (x == c goes left).
  // One flag per column; empty: no column.
  std::vector<std::uint8_t> categorical;

  // Matters of speed, never of the result: nodes with fewer rows keep no cache, and a cache holds
  // this many candidates more than the split needs.
  std::uint32_t cache_rows = 48;
  std::uint32_t slack = 6;

  [[nodiscard]] std::uint32_t column_key(std::uint32_t column) const noexcept {
    return column_keys.empty() ? column : column_keys[column];
  }
  [[nodiscard]] bool is_category(std::uint32_t column) const noexcept {
    return !categorical.empty() && categorical[column] != 0;
  }
  [[nodiscard]] bool is_regression() const noexcept {
    return criterion == Criterion::squared_error;
  }

  // Throws std::invalid_argument, with what was given and what was expected.
  void validate() const;
};

// What a change did to the trees.
struct Report {
  std::uint64_t rebuilt_rows = 0;   // rows of dropped subtrees, summed over them
  std::uint64_t rebuilt_nodes = 0;  // subtrees dropped
  std::uint64_t touched_trees = 0;
  std::uint64_t rescans = 0;        // nodes whose candidates were searched again
  bool rescaled = false;            // the scale of a regression target changed: all trees are regrown
  bool emptied = false;             // a class has lost its last row

  Report& operator+=(const Report& other) noexcept;
};

}  // namespace letheon::forest
