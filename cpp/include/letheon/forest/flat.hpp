// Trees without rows, as flat arrays: what a predictor keeps. The nodes of each tree are in preorder,
// so that the left child of node i is node i + 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "letheon/common/table.hpp"

namespace letheon::forest {

struct FlatTrees {
  std::span<const std::int64_t> begins;        // first node of each tree, then the number of nodes
  std::span<const std::int32_t> columns;       // -1: a leaf
  std::span<const float> thresholds;           // rows with x <= threshold go left
  std::span<const std::int32_t> rights;        // right child
  std::span<const std::uint8_t> missing_left;  // whether rows without a value go left
  std::span<const std::uint8_t> categorical;   // of each column: rows with x == threshold go left
};

// Throws std::invalid_argument unless every walk stays inside its tree and ends.
void require_flat_trees(const FlatTrees& trees);

// out[t * n_rows + i] = the leaf that row i of X reaches in tree t. Throws std::invalid_argument
// for trees that `require_flat_trees` refuses, another number of columns, and infinity.
void find_flat_leaves(const FlatTrees& trees, const MatrixView& X, std::size_t n_threads,
                      std::int32_t* out);

}  // namespace letheon::forest
