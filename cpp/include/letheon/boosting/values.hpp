// The values of the leaves: all rows are boosted through trees whose splits are fixed.
//
// The state of a row is one int16 per output: its score in steps, and for two classes twice that
// plus its class. States before every kCheckRounds-th round are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/boosting/chain.hpp"
#include "letheon/boosting/loss.hpp"
#include "letheon/boosting/spec.hpp"
#include "letheon/boosting/tree.hpp"
#include "letheon/common/progress.hpp"
#include "letheon/common/table.hpp"

namespace letheon::boosting {

inline constexpr std::uint32_t kCheckRounds = 16;
inline constexpr std::uint8_t kErased = 255;  // code of a row that is not there

using State = std::int16_t;

// The value of a leaf in steps: floor(-g * rate * 2^step_bits / (h + l2) + dither / 2^32), clipped.
class LeafRule {
 public:
  explicit LeafRule(const Spec& spec) noexcept;

  [[nodiscard]] std::int32_t value(const Leaf& leaf, std::uint32_t dither) const noexcept;
  // The dither of the tree of an output in a round. One for all its leaves, and from round to
  // round by the golden ratio: what one round rounds up, the next ones round down.
  [[nodiscard]] std::uint32_t dither(std::size_t round, std::size_t output) const noexcept {
    constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
    return static_cast<std::uint32_t>((mix64(key_, output) + round * kGolden) >> 32);
  }

 private:
  std::int64_t factor_;
  std::int64_t l2_;
  std::int32_t most_;
  std::uint64_t key_;
};

// One byte per row for each tree: its leaf, or kErased.
using Codes = std::vector<std::vector<std::uint8_t>>;

// The rows and how they are scored; nothing here is owned.
struct ValueInput {
  const Spec& spec;
  const Table& table;
  Targets targets;
  std::span<const std::int32_t> base;  // start of each output, in steps

  [[nodiscard]] bool is_folded() const noexcept {
    return spec.loss == Loss::logistic && targets.n_outputs == 1;
  }
  [[nodiscard]] State start(Slot slot, std::size_t output) const noexcept;
  [[nodiscard]] State step(std::int32_t steps) const noexcept {
    return static_cast<State>(is_folded() ? 2 * steps : steps);
  }
  // The gradients of a row in these states, without its weight.
  void gradients(Slot slot, const State* states, Gradient* out) const noexcept;
  void gradients_of(std::int32_t target, const State* states, Gradient* out) const noexcept;
};

// Computes the leaves of the rounds from `first` on, and the states before them.
void compute_values(const ValueInput& input, std::uint32_t first, const Codes& codes,
                    std::vector<Tree>& trees, std::vector<std::vector<State>>& checks,
                    std::size_t n_threads, Progress& progress);

}  // namespace letheon::boosting
