// A tree of at most 64 leaves: splits in preorder, leaves from left to right.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "letheon/boosting/spec.hpp"

namespace letheon::boosting {

// A row goes left if x <= threshold or, in a categorical column, if x == threshold. A child is the
// number of a split, or -1 - the number of a leaf.
struct Split {
  std::uint32_t column = 0;
  float threshold = 0.0f;
  bool categorical = false;
  bool missing_left = false;
  std::int8_t left = 0;
  std::int8_t right = 0;
  // Leaves [first, middle) are to the left.
  std::uint8_t first = 0;
  std::uint8_t middle = 0;

  bool operator==(const Split&) const = default;

  [[nodiscard]] bool sends_left(float x) const noexcept {
    if (std::isnan(x)) {
      return missing_left;
    }
    return categorical ? x == threshold : x <= threshold;
  }
};

struct Leaf {
  std::int64_t g = 0;
  std::int64_t h = 0;
  std::int32_t step = 0;  // the value, in steps
};

struct Tree {
  std::vector<Split> splits;
  std::vector<Leaf> leaves = std::vector<Leaf>(1);
  bool coded = false;  // whether the codes of the rows are those of these splits

  // `value_of(column)` is the row's value; any callable.
  template <typename ValueOf>
  [[nodiscard]] std::uint8_t leaf_of(ValueOf value_of) const {
    int node = splits.empty() ? -1 : 0;
    while (node >= 0) {
      const Split& split = splits[static_cast<std::size_t>(node)];
      node = split.sends_left(value_of(split.column)) ? split.left : split.right;
    }
    return static_cast<std::uint8_t>(-1 - node);
  }
};

// Sets the children and the leaves of splits that stand in preorder; `is_leaf` lists the kinds of
// all nodes in preorder. False if they make no tree of at most `max_leaves` leaves.
[[nodiscard]] bool link_splits(std::vector<Split>& splits, const std::vector<bool>& is_leaf,
                               std::size_t max_leaves);

}  // namespace letheon::boosting
