#include "letheon/forest/flat.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "letheon/common/workers.hpp"
#include "letheon/forest/predict.hpp"

namespace letheon::forest {

namespace {

// Rows of a block are read once and stay in the cache for all trees.
constexpr std::size_t kRowsTogether = 256;
constexpr std::size_t kTogether = 8;

// A node in one place: a walk reads one line of the cache per node.
struct FlatNode {
  float threshold;
  std::int32_t column;  // 0 in a leaf
  std::int32_t step;    // to the left child; 0 in a leaf
  std::int32_t jump;    // from the left child to the right one; 0 in a leaf
  bool missing_left;
  bool categorical;
};

std::vector<FlatNode> pack(const FlatTrees& trees) {
  std::vector<FlatNode> nodes(trees.columns.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (trees.columns[i] < 0) {
      continue;
    }
    const std::int32_t column = trees.columns[i];
    nodes[i] = {trees.thresholds[i],
                column,
                1,
                trees.rights[i] - static_cast<std::int32_t>(i) - 1,
                trees.missing_left[i] != 0,
                trees.categorical[static_cast<std::size_t>(column)] != 0};
  }
  return nodes;
}

// Several rows at a time: while one waits for memory, the others continue.
template <std::size_t kTogether, bool kCategories>
void descend(const FlatNode* nodes, std::int32_t root, const float* rows, std::size_t n_columns,
             std::int32_t* leaves) noexcept {
  std::array<std::int32_t, kTogether> at;
  at.fill(root);
  std::int32_t going = 1;
  while (going != 0) {
    going = 0;
    for (std::size_t g = 0; g < kTogether; ++g) {
      const FlatNode& node = nodes[at[g]];
      const float x = rows[g * n_columns + static_cast<std::size_t>(node.column)];
      bool right = !(x <= node.threshold);
      if constexpr (kCategories) {
        right = right || (node.categorical && x != node.threshold);
      }
      if (x != x) {
        right = !node.missing_left;
      }
      // No branch that depends on the row: half of them would be predicted wrongly.
      at[g] += node.step + (node.jump & -static_cast<std::int32_t>(right));
      going |= node.step;
    }
  }
  std::ranges::copy(at, leaves);
}

}  // namespace

void require_flat_trees(const FlatTrees& trees) {
  const std::size_t n_nodes = trees.columns.size();
  const bool same = trees.thresholds.size() == n_nodes && trees.rights.size() == n_nodes &&
                    trees.missing_left.size() == n_nodes;
  if (!same || trees.begins.empty() || trees.begins.front() != 0 ||
      trees.begins.back() != static_cast<std::int64_t>(n_nodes)) {
    throw std::invalid_argument("the arrays of the trees have different lengths");
  }
  if (n_nodes > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::invalid_argument("the trees have too many nodes");
  }
  for (std::size_t t = 0; t + 1 < trees.begins.size(); ++t) {
    const std::int64_t begin = trees.begins[t];
    const std::int64_t end = trees.begins[t + 1];
    if (begin < 0 || end <= begin || end > static_cast<std::int64_t>(n_nodes)) {
      throw std::invalid_argument("a tree has no nodes");
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const auto node = static_cast<std::size_t>(i);
      if (trees.columns[node] < 0) {
        continue;
      }
      const bool known = static_cast<std::size_t>(trees.columns[node]) < trees.categorical.size();
      // Children come after their parent, so every walk ends.
      if (!known || trees.rights[node] <= i + 1 || trees.rights[node] >= end) {
        throw std::invalid_argument("a node of a tree has a wrong column or child");
      }
    }
  }
}

void find_flat_leaves(const FlatTrees& trees, const MatrixView& X, std::size_t n_threads,
                      std::int32_t* out) {
  require_flat_trees(trees);
  const std::size_t n_columns = trees.categorical.size();
  if (X.n_columns != n_columns || n_columns == 0) {
    throw std::invalid_argument("X has " + std::to_string(X.n_columns) +
                                " columns; this predictor has " + std::to_string(n_columns));
  }
  const std::size_t n_trees = trees.begins.size() - 1;
  const std::vector<FlatNode> nodes = pack(trees);
  const bool categories = std::ranges::any_of(trees.categorical, [](std::uint8_t flag) { return flag != 0; });
  const std::size_t n_blocks = (X.n_rows + kRowsTogether - 1) / kRowsTogether;
  run_tasks(n_blocks, n_threads, [&](std::size_t, std::size_t b) {
    const std::size_t begin = b * kRowsTogether;
    const std::size_t end = std::min(begin + kRowsTogether, X.n_rows);
    require_finite(X, begin, end);
    std::vector<float> rows((end - begin) * n_columns);
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = 0; j < n_columns; ++j) {
        rows[(i - begin) * n_columns + j] = X.at(i, j);
      }
    }
    for (std::size_t t = 0; t < n_trees; ++t) {
      const auto root = static_cast<std::int32_t>(trees.begins[t]);
      std::int32_t* const leaves = out + t * X.n_rows;
      const auto walk = categories ? descend<kTogether, true> : descend<kTogether, false>;
      const auto walk_one = categories ? descend<1, true> : descend<1, false>;
      std::size_t i = begin;
      for (; i + kTogether <= end; i += kTogether) {
        walk(nodes.data(), root, rows.data() + (i - begin) * n_columns, n_columns, leaves + i);
      }
      for (; i < end; ++i) {
        walk_one(nodes.data(), root, rows.data() + (i - begin) * n_columns, n_columns, leaves + i);
      }
    }
  });
}

}  // namespace letheon::forest
