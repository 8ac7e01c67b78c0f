// Trees of predictors: the walk of many rows against a walk of one, and damaged trees.
#include <cmath>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/flat.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::kMissing;
using letheon::testing::Luck;

struct Trees {
  std::vector<std::int64_t> begins{0};
  std::vector<std::int32_t> columns, rights;
  std::vector<float> thresholds;
  std::vector<std::uint8_t> missing_left;
  std::vector<std::uint8_t> categorical;

  [[nodiscard]] forest::FlatTrees view() const {
    return {begins, columns, thresholds, rights, missing_left, categorical};
  }

  // Adds a node and, below it, up to `levels` levels of nodes.
  void grow(Luck& luck, int levels) {
    const std::size_t node = columns.size();
    const bool split = levels > 0 && !luck.one_in(4);
    columns.push_back(split ? static_cast<std::int32_t>(luck.below(categorical.size())) : -1);
    rights.push_back(-1);
    thresholds.push_back(split ? static_cast<float>(luck.below(7)) : 0.0f);
    missing_left.push_back(split && luck.one_in(2) ? 1 : 0);
    if (split) {
      grow(luck, levels - 1);
      rights[node] = static_cast<std::int32_t>(columns.size());
      grow(luck, levels - 1);
    }
  }

  [[nodiscard]] std::int32_t leaf_of(std::size_t tree, const float* row) const {
    auto node = static_cast<std::size_t>(begins[tree]);
    while (columns[node] >= 0) {
      const auto column = static_cast<std::size_t>(columns[node]);
      const float x = row[column];
      const bool equal = categorical[column] != 0;
      const bool left = std::isnan(x) ? missing_left[node] != 0
                        : equal       ? x == thresholds[node]
                                      : x <= thresholds[node];
      node = left ? node + 1 : static_cast<std::size_t>(rights[node]);
    }
    return static_cast<std::int32_t>(node);
  }
};

letheon::MatrixView view(const std::vector<float>& X, std::size_t n_columns) {
  constexpr auto item = static_cast<std::ptrdiff_t>(sizeof(float));
  return {reinterpret_cast<const std::byte*>(X.data()), X.size() / n_columns, n_columns,
          static_cast<std::ptrdiff_t>(n_columns) * item, item, false};
}

void walks() {
  Luck luck(1);
  for (const std::size_t n_rows : {1u, 7u, 8u, 9u, 300u, 513u}) {
    for (const bool has_categories : {false, true}) {
      Trees trees;
      trees.categorical = {0, has_categories ? std::uint8_t{1} : std::uint8_t{0}, 0};
      for (int tree = 0; tree < 5; ++tree) {
        trees.grow(luck, tree * 2);
        trees.begins.push_back(static_cast<std::int64_t>(trees.columns.size()));
      }
      std::vector<float> X(n_rows * 3);
      for (float& x : X) {
        x = luck.one_in(6) ? kMissing : static_cast<float>(luck.below(8));
      }
      std::vector<std::int32_t> leaves(n_rows * 5);
      forest::find_flat_leaves(trees.view(), view(X, 3), 3, leaves.data());
      for (std::size_t i = 0; i < n_rows; ++i) {
        for (std::size_t tree = 0; tree < 5; ++tree) {
          check(leaves[tree * n_rows + i] == trees.leaf_of(tree, X.data() + i * 3), "leaf");
        }
      }
    }
  }
}

// Trees with one changed number are refused, or no walk leaves them.
void damage() {
  Luck luck(2);
  Trees trees;
  trees.categorical = {0, 0};
  trees.grow(luck, 6);
  trees.begins.push_back(static_cast<std::int64_t>(trees.columns.size()));
  const std::vector<float> X(20, 3.0f);
  std::vector<std::int32_t> leaves(10);
  for (int round = 0; round < 2000; ++round) {
    Trees damaged = trees;
    const std::size_t node = luck.below(trees.columns.size());
    const auto value = static_cast<std::int32_t>(luck.below(2 * trees.columns.size())) - 5;
    (luck.one_in(2) ? damaged.columns : damaged.rights)[node] = value;
    try {
      forest::find_flat_leaves(damaged.view(), view(X, 2), 1, leaves.data());
    } catch (const std::invalid_argument&) {
    }
  }
  trees.begins.back() += 1;
  check_refused([&] { forest::require_flat_trees(trees.view()); }, "a tree without an end");
}

}  // namespace

int main() {
  walks();
  damage();
  return letheon::testing::result();
}
