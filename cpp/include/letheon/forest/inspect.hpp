// What people look at: trees in preorder, importances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/forest/spec.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

struct TreeView {
  std::vector<std::uint8_t> kind;  // 0 leaf, 1 greedy, 2 random
  std::vector<std::int64_t> attribute, left, right;  // -1: none
  std::vector<float> threshold;                      // NaN: none
  std::vector<std::uint8_t> missing_left;
  std::vector<std::int64_t> n_rows, weight;
  std::size_t width = 0;
  std::vector<double> values;  // class weights by code, or the mean of the target
};

[[nodiscard]] TreeView view_tree(const Tree& tree, int exponent);

// Mean over the trees of each attribute's share of the decrease in impurity; from the sums.
[[nodiscard]] std::vector<double> mean_importances(std::span<const Tree> trees, const Spec& spec);

}  // namespace letheon::forest
