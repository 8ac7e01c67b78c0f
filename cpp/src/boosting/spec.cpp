#include "letheon/boosting/spec.hpp"

#include <algorithm>
#include <stdexcept>

namespace letheon::boosting {

namespace {

constexpr std::int32_t kRoomForScores = 10000;  // with a base of 24 units, twice a score fits int16

void require(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

std::int32_t Spec::largest_step() const noexcept {
  return std::min(8 << step_bits, kRoomForScores / static_cast<std::int32_t>(n_rounds));
}

void Spec::validate() const {
  require(n_columns >= 1 && n_columns < (1u << 22), "a model takes 1 to 2^22 - 1 columns");
  require(n_rounds >= 1 && n_rounds <= kMostRounds, "the number of rounds must be 1 to 10,000");
  require(max_leaves >= 2 && max_leaves <= kMostLeaves, "max_leaves must be 2 to 64");
  require(rate >= 1 && rate <= kRateUnit && pilot_rate >= 1 && pilot_rate <= kRateUnit,
          "a learning rate must be 1/1024 to 1");
  require(l2 >= 0 && l2 <= kMostL2, "l2 must be at least 0 and at most 2^58");
  require(step_bits >= 2 && step_bits <= 8, "step_bits must be 2 to 8");
  require(n_chains >= 1 && n_chains <= n_rounds, "n_chains must be 1 to the number of rounds");
  require(chain_people < (1u << 31), "a chain has fewer than 2^31 people");
  require(max_bins >= 2 && max_bins <= kMostBins, "max_bins must be 2 to 254");
  require(min_samples_leaf >= 1 && min_samples_leaf < (1u << 31),
          "min_samples_leaf must be at least 1");
  require(tree_columns >= 1 && tree_columns <= n_columns,
          "a tree uses between 1 and all columns");
  require(!y_exponent || (*y_exponent >= -1100 && *y_exponent <= 1100),
          "the exponent of the target is out of range");
  require(is_categorical.empty() || is_categorical.size() == n_columns,
          "one mark per column is needed");
}

}  // namespace letheon::boosting
