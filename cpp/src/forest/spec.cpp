#include "letheon/forest/spec.hpp"

#include <algorithm>
#include <stdexcept>

namespace letheon::forest {

namespace {

void require(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

void Spec::validate() const {
  require(n_columns >= 1, "a forest needs at least one column");
  require(n_columns < (1u << 30), "a forest takes fewer than 2^30 columns");
  require(!tree_keys.empty(), "a forest needs at least one tree");
  require(max_features >= 1 && max_features <= n_columns,
          "max_features must be between 1 and the number of columns");
  require(n_thresholds >= 1, "n_thresholds must be at least 1");
  require(min_samples_split >= 1, "min_samples_split must be at least 1");
  require(min_samples_leaf >= 1, "min_samples_leaf must be at least 1");
  require(sample_keys.empty() || sample_keys.size() == tree_keys.size(),
          "one sample key per tree is needed");
  require(!y_exponent || (*y_exponent >= -1100 && *y_exponent <= 1100),
          "the exponent of the target is out of range");
  require(column_keys.empty() || column_keys.size() == n_columns,
          "one key per column is needed");
  require(categorical.empty() || categorical.size() == n_columns,
          "one flag of categories per column is needed");
  auto keys = column_keys;
  std::ranges::sort(keys);
  require(std::ranges::adjacent_find(keys) == keys.end(), "the keys of columns must be distinct");
}

Report& Report::operator+=(const Report& other) noexcept {
  rebuilt_rows += other.rebuilt_rows;
  rebuilt_nodes += other.rebuilt_nodes;
  touched_trees += other.touched_trees;
  rescans += other.rescans;
  rescaled = rescaled || other.rescaled;
  emptied = emptied || other.emptied;
  return *this;
}

}  // namespace letheon::forest
