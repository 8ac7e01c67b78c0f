// Rows that leave: one walk per tree for all of them at once.
//
// At every node on the way the sums and the cache are brought up to date, and the node's split is
// decided again. If it is the same, the walk continues below; if not, the subtree is dropped, since
// its rows are all that is needed to build it again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/forest/grow.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

// Numbers of rows in a RowBlock that pass a node.
using Members = std::span<std::uint32_t>;

[[nodiscard]] inline RowView row_view(const RowBlock& block, std::uint32_t member) noexcept {
  return {block.row(member), block.labels[member], block.q[member], block.weights[member]};
}

// Reorders the members so that those that go left come first; returns how many they are.
[[nodiscard]] std::uint32_t part(const RowBlock& block, Members members,
                                 const Verdict& split) noexcept;

// Whether a node that is split by `before` is split in the same way by `after`.
[[nodiscard]] bool same_split(const Verdict& before, const Verdict& after) noexcept;

// Whether two splits by one attribute send all these rows to the same sides.
[[nodiscard]] bool same_sides(const Table& table, const Verdict& before, const Verdict& after,
                              std::span<const Slot> rows) noexcept;

// A node and the members that pass it: members[begin, end).
struct Step {
  NodeId id;
  std::uint64_t key;
  std::uint32_t depth;
  std::uint32_t begin;
  std::uint32_t end;
};

// Puts the steps below a split node on a stack; the first n_left of the members go left.
void descend(const Node& node, const Step& step, std::uint32_t n_left, std::vector<Step>& stack);

class Forgetter {
 public:
  // `leaving` are the rows to take out, still held by the table; `doomed` marks their slots.
  Forgetter(const Table& table, const Spec& spec, Scratch& scratch, const RowBlock& leaving,
            const std::vector<std::uint8_t>& doomed) noexcept
      : table_(table),
        spec_(spec),
        scratch_(scratch),
        grower_(table, spec, scratch),
        leaving_(leaving),
        doomed_(doomed),
        is_usual_(spec.criterion == Criterion::gini && table.n_lanes() == 2 &&
                  spec.min_samples_leaf == 1) {}

  // Room for walks of so many members: what follows shall not fail.
  void reserve(std::size_t n_members);
  // Numbers of the leaving rows that the next walk is about; to be filled before it.
  [[nodiscard]] std::vector<std::uint32_t>& members() noexcept { return members_; }
  // Starts a walk through a tree.
  void start(Tree& tree, std::uint64_t root_key);
  // Asks for the memory that the next step needs, in two stages: the node, then its cache.
  void fetch_node() const noexcept;
  void fetch_cache() const noexcept;
  // Takes the members out of one node; false when the walk is over. Does not fail: what memory
  // does not suffice for is left unbuilt.
  bool advance(bool eager) noexcept;
  [[nodiscard]] const Report& report() const noexcept { return report_; }

  // What a walk would drop. Changes nothing.
  [[nodiscard]] Report cost(const Tree& tree, std::uint64_t root_key);

 private:
  // `withdrawn`: the quick step has begun, and the sums, the size and the block are up to date.
  void visit(Tree& tree, const Step& step, Members members, bool withdrawn, bool eager) noexcept;
  void visit_childless(Tree& tree, const Step& step, Members members, bool eager) noexcept;
  // The usual step, quickly: one member, two classes, Gini, a cached greedy node. True if the split
  // stays, and `step` is then the next one. Otherwise only what `withdrawn` says has changed.
  [[nodiscard]] bool visit_quickly(Tree& tree, Step& step, bool& withdrawn) const noexcept;
  void withdraw(Block block, Members members) const noexcept;
  // How the node is to be split without the members; Kind::unbuilt: build it again. `use_cache`:
  // the cache is there, and a block is up to date.
  [[nodiscard]] Judgement judge(Tree& tree, const Step& step, Members members, bool use_cache);
  [[nodiscard]] Judgement judge_by_block(Block block, Lanes totals) const noexcept;
  [[nodiscard]] Judgement judge_by_extremes(const Tree& tree, const Step& step, Members members,
                                            Extremes& extremes) const noexcept;
  [[nodiscard]] Judgement judge_by_rows(const Tree& tree, const Step& step, Lanes totals);
  void mark_passed_over(Block block, std::uint64_t key, std::vector<std::uint64_t>& constant);
  // Whether only the threshold of a random node changes; scratch.rows are the rows that stay.
  [[nodiscard]] bool moves_nothing(const Node& node, const Judgement& judgement) const noexcept;
  void remove_rows(Tree& tree, NodeId id, Members members) noexcept;
  void drop(Tree& tree, const Step& step, Kind kind, bool eager) noexcept;
  void build(Tree& tree, const Step& step) noexcept;
  [[nodiscard]] bool cost_at(const Tree& tree, const Step& step, Members members);

  const Table& table_;
  const Spec& spec_;
  Scratch& scratch_;
  Grower grower_;
  const RowBlock& leaving_;
  const std::vector<std::uint8_t>& doomed_;
  bool is_usual_;
  Tree* tree_ = nullptr;
  std::vector<std::uint32_t> members_;
  std::vector<Step> stack_;
  Report report_;
};

}  // namespace letheon::forest
