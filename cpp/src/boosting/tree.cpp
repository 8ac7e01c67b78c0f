#include "letheon/boosting/tree.hpp"

#include <algorithm>

namespace letheon::boosting {

bool link_splits(std::vector<Split>& splits, const std::vector<bool>& is_leaf,
                 std::size_t max_leaves) {
  const auto n_leaves = static_cast<std::size_t>(std::ranges::count(is_leaf, true));
  if (n_leaves > max_leaves || n_leaves != splits.size() + 1 ||
      is_leaf.size() != n_leaves + splits.size()) {
    return false;
  }
  // Splits whose left child has been met, but not yet the right one.
  std::vector<std::size_t> open;
  std::size_t n_met = 0;
  std::size_t split_number = 0;
  bool is_left = true;  // the next node is the left child of the last split
  for (std::size_t i = 0; i < is_leaf.size(); ++i) {
    const auto number = static_cast<std::int8_t>(
        is_leaf[i] ? -1 - static_cast<int>(n_met) : static_cast<int>(split_number));
    if (i > 0 && is_left) {
      splits[split_number - 1].left = number;
    } else if (i > 0) {
      if (open.empty()) {
        return false;
      }
      Split& parent = splits[open.back()];
      open.pop_back();
      parent.right = number;
      parent.middle = static_cast<std::uint8_t>(n_met);
    }
    is_left = !is_leaf[i];
    if (is_leaf[i]) {
      ++n_met;
    } else {
      splits[split_number].first = static_cast<std::uint8_t>(n_met);
      open.push_back(split_number++);
    }
  }
  return open.empty();
}

}  // namespace letheon::boosting
