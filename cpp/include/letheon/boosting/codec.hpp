// Canonical bytes of trees, for digests and files. Little-endian throughout.
//
//   model   "LTRB", version u32, rounds u32, outputs u32, base of each output i32, trees
//   tree    nodes in preorder: tag u8; splits: column u32, bits of the threshold u32; leaves: sums of
//           g and h i64, value i32
//   tag     0 leaf; 1 threshold, 2 category; +4: missing values go left
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/boosting/spec.hpp"
#include "letheon/boosting/tree.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon::boosting {

inline constexpr std::uint32_t kTreeFormat = 1;

[[nodiscard]] std::vector<std::uint8_t> write_trees(std::span<const Tree> trees,
                                                    std::span<const std::int32_t> base,
                                                    const Spec& spec);

// Throws std::invalid_argument unless the bytes are trees of these settings. Leaves are not checked
// against rows.
[[nodiscard]] std::vector<Tree> read_trees(Bytes bytes, std::uint32_t n_outputs, const Spec& spec);

struct ModelSize {
  std::uint64_t n_rounds = 0;
  std::uint64_t n_rows = 0;
  std::uint64_t n_columns = 0;
  std::uint64_t n_classes = 0;  // 0: regression
  std::uint64_t text_bytes = 0;
};

struct RestoreCost {
  std::uint64_t bytes = 0;  // of memory, at most
  std::uint64_t steps = 0;
};

// What restoring would take, by the numbers alone.
[[nodiscard]] RestoreCost restore_cost(const ModelSize& size) noexcept;

}  // namespace letheon::boosting
