// Rows that come: the mirror image of forget.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "letheon/forest/forget.hpp"

namespace letheon::forest {

class Learner {
 public:
  // `coming` are rows that the table holds already, with slots greater than all others.
  Learner(const Table& table, const Spec& spec, Scratch& scratch, const RowBlock& coming) noexcept
      : table_(table),
        spec_(spec),
        scratch_(scratch),
        grower_(table, spec, scratch),
        coming_(coming) {}

  // Puts the members into a tree; they get reordered. If it throws, the tree must be reset.
  Report learn(Tree& tree, std::uint64_t root_key, std::vector<std::uint32_t>& members);

 private:
  void visit(Tree& tree, const Step& step, Members members);
  [[nodiscard]] Judgement judge(Tree& tree, const Step& step, Members members);
  // Kind::unbuilt: the cache does not say how the node is to be split.
  [[nodiscard]] Judgement judge_by_cache(Tree& tree, const Step& step, Members members);
  [[nodiscard]] bool admit(const Tree& tree, const Step& step, Members members) const noexcept;
  [[nodiscard]] bool admit_categories(Extremes& extremes, std::uint64_t key,
                                      std::uint32_t attribute, Members members) const noexcept;
  void widen_extremes(Extremes& extremes, std::uint32_t attribute, Members members) const noexcept;
  // Whether the attributes that were passed over as constant are so with the members too.
  [[nodiscard]] bool passed_over_rightly(const Tree& tree, const Step& step, Members members);
  void arrive(NodeId id, Members members);

  const Table& table_;
  const Spec& spec_;
  Scratch& scratch_;
  Grower grower_;
  const RowBlock& coming_;
  std::vector<Step> stack_;
  std::vector<NodeId> where_;
  std::vector<std::vector<Slot>> arrived_;
  Report report_;
};

}  // namespace letheon::forest
