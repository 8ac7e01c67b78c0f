// Building subtrees: a pure function of the node's key, depth and rows.
#pragma once

#include <cstdint>

#include "letheon/forest/scan.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

// What a node of these rows must be, with the cache that says so (in scratch.block, or extremes).
struct Judgement {
  Verdict verdict{};
  Kind kind = Kind::leaf;
  Extremes extremes{};
};

// Where the threshold of a random node lies between the extremes, and where NaN goes.
[[nodiscard]] Verdict random_split(std::uint64_t key, const Spec& spec,
                                   std::uint32_t attribute, const Extremes& extremes) noexcept;

class Grower {
 public:
  Grower(const Table& table, const Spec& spec, Scratch& scratch) noexcept
      : table_(table), spec_(spec), scratch_(scratch), scanner_(table, spec, scratch) {}

  // Builds everything below an unbuilt node. If memory runs out, nodes stay unbuilt.
  void build(Tree& tree, NodeId id, std::uint64_t key, std::uint32_t depth);
  // Builds every unbuilt node of a tree; returns how many there were.
  std::size_t settle(Tree& tree, std::uint64_t root_key);

  // Judges a node that is not final by a look at its rows, of which `totals` are the lanes.
  [[nodiscard]] Judgement judge(Lanes totals, std::uint64_t key, std::uint32_t depth,
                                std::span<const Slot> rows,
                                std::vector<std::uint64_t>* known_constant = nullptr);
  // Gives a split node the cache of this judgement, if it is large enough.
  void keep_cache(Node& node, const Judgement& judgement) const;

  // Leaf by depth, weight or purity: the node's sums alone say so.
  [[nodiscard]] bool is_final(const Sums& sums, std::uint32_t depth) const noexcept;

 private:
  [[nodiscard]] Judgement judge_random(std::uint64_t key, std::int64_t weight,
                                       std::vector<std::uint64_t>* known_constant);
  void divide(Tree& tree, NodeId id, const Judgement& judgement);

  const Table& table_;
  const Spec& spec_;
  Scratch& scratch_;
  Scanner scanner_;
};

// Sorts row numbers; fast for long lists.
void sort_rows(std::span<Slot> rows, std::vector<Slot>& scratch);

}  // namespace letheon::forest
