// A chain: the trees that ordinary gradient boosting grows on the rows of some people.
//
// They depend on the settings, the number of the chain and the set of these rows alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/boosting/spec.hpp"
#include "letheon/boosting/tree.hpp"
#include "letheon/common/progress.hpp"
#include "letheon/common/table.hpp"

namespace letheon::boosting {

// What boosting predicts, and from what; the same for all chains.
struct Targets {
  Loss loss = Loss::logistic;
  std::uint32_t n_outputs = 1;          // trees per round
  std::span<const std::uint32_t> rank;  // place of each class code among the classes held
  std::span<const std::int32_t> y;      // scaled target of each slot; empty for classes

  [[nodiscard]] std::int32_t of(const Table& table, Slot slot) const noexcept {
    return y.empty() ? static_cast<std::int32_t>(rank[table.label(slot)]) : y[slot];
  }
};

// The trees of the rounds of chain `chain`, n_outputs per round, without values.
[[nodiscard]] std::vector<Tree> grow_chain(const Spec& spec, std::size_t chain, const Table& table,
                                           const Targets& targets, std::span<const Slot> rows,
                                           Progress& progress);

}  // namespace letheon::boosting
