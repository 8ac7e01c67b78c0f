// Randomness of a node: every draw is a hash of the node's key and what the draw is about.
#pragma once

#include <bit>
#include <cstdint>

#include "letheon/common/keyed_hash.hpp"

namespace letheon::forest {

enum class Use : std::uint64_t { child = 0, order = 1, threshold = 2, uniform = 3, missing = 4 };

[[nodiscard]] constexpr std::uint64_t draw(std::uint64_t node_key, Use use,
                                           std::uint64_t about) noexcept {
  return mix64(node_key, (static_cast<std::uint64_t>(use) << 32) + about);
}

[[nodiscard]] constexpr std::uint64_t left_key(std::uint64_t node_key) noexcept {
  return draw(node_key, Use::child, 0);
}

[[nodiscard]] constexpr std::uint64_t right_key(std::uint64_t node_key) noexcept {
  return draw(node_key, Use::child, 1);
}

[[nodiscard]] constexpr std::uint32_t priority(std::uint64_t threshold_key, float value) noexcept {
  return mix32(threshold_key, std::bit_cast<std::uint32_t>(value));
}

}  // namespace letheon::forest
