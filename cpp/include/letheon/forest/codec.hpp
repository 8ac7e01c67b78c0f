// Canonical bytes of trees, for digests and files. Little-endian throughout.
//
//   forest   "LTRF", version u32, number of trees u32, lanes u32, then per tree: length u64, nodes
//   node     tag u8; split nodes: attribute u32, bits of the threshold u32; then the sums
//   tag      bits 0-1: 0 leaf, 1 greedy, 2 random; bit 2: the node's rows have NaN at the
//            attribute; bit 3: NaN goes left
//   sums     classes: one u32 per class, in the order of the labels; else weight u32, sum i64
//
// Nodes follow in preorder. Neither caches nor unbuilt nodes are ever written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/forest/tree.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon::forest {

inline constexpr std::uint32_t kTreeFormat = 1;

[[nodiscard]] std::vector<std::uint8_t> write_trees(std::span<const Tree> trees,
                                                    std::span<const std::uint32_t> order,
                                                    const Spec& spec);

// The bytes of each tree. Throws std::invalid_argument unless the frame is right.
[[nodiscard]] std::vector<Bytes> split_trees(Bytes bytes, std::uint32_t n_classes,
                                             const Spec& spec);

// What a forest is to be restored from, by what its bytes and settings say.
struct ForestSize {
  std::uint64_t n_trees = 0;
  std::uint64_t n_rows = 0;
  std::uint64_t n_columns = 0;
  std::uint32_t n_classes = 0;
  bool regression = false;
  std::uint64_t text_bytes = 0;  // of all ids that are texts
};

struct RestoreCost {
  std::uint64_t bytes = 0;  // of memory, at most
  std::uint64_t steps = 0;  // rows that are sent to a child, at most
};

// What restoring would take: counted from the bytes, before anything is built. Throws
// std::invalid_argument unless the bytes are trees of that size.
[[nodiscard]] RestoreCost restore_cost(Bytes bytes, const ForestSize& size);

// Gives a tree that is one unbuilt node the splits of the bytes, and its rows their places.
// Throws std::invalid_argument if anything in the bytes contradicts the rows or the settings.
void read_tree(Bytes bytes, const Table& table, const Spec& spec, Tree& tree);

}  // namespace letheon::forest
