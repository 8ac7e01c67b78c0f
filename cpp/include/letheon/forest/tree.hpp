// One tree: nodes in an arena, and the rows of every subtree side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "letheon/forest/block.hpp"
#include "letheon/forest/keys.hpp"
#include "letheon/forest/score.hpp"
#include "letheon/common/table.hpp"

namespace letheon::forest {

using NodeId = std::uint32_t;
__extension__ using Wide = unsigned __int128;

enum class Kind : std::uint8_t {
  leaf,     // stays one whatever is forgotten: too deep, too few, pure, or nothing varies
  blocked,  // a leaf because no candidate is eligible; losing a row may change that
  unbuilt,  // its rows are known, its subtree is not built yet
  greedy,
  random,
};

// What a random node remembers of its attribute. For categories `least` is the chosen one, and
// `greatest` is infinity if there are others, of which it has the weight.
struct Extremes {
  float least;
  float greatest;
  std::int64_t least_weight;
  std::int64_t greatest_weight;
  std::int64_t missing_weight;

  // Whether a row with this value counts in `greatest_weight`.
  [[nodiscard]] bool is_greatest(float x) const noexcept {
    return greatest <= std::numeric_limits<float>::max() ? x == greatest : x != least && x == x;
  }
};

// What a set of rows adds up to.
struct Sums {
  Lanes lanes;
  const Wide* squares;  // null for classes

  [[nodiscard]] std::int64_t weight() const noexcept {
    return squares == nullptr ? class_weight(lanes) : lanes[0];
  }
  // One class only; or all values of the target are equal.
  [[nodiscard]] bool is_pure() const noexcept;
};

// Adds a row to the lanes and squares of a set, or takes it out (sign = -1).
void count_row(const RowView& row, int sign, std::span<std::int64_t> lanes, Wide* squares) noexcept;

// The kind, the flags and the size of the cache share four bytes: two nodes fill a cache line.
struct Node {
  float threshold = 0.0f;
  std::uint32_t attribute = 0;
  NodeId left = 0;          // the right child follows it; 0: none
  std::uint32_t begin = 0;  // where its rows begin in Tree::rows
  std::uint32_t size = 0;   // number of its rows (not of their weight)
  Kind kind = Kind::unbuilt;
  bool saw_missing : 1 = false;
  bool missing_left : 1 = false;
  bool is_category : 1 = false;
  std::uint8_t cache_lines = 0;  // size of the cache in lines of 64 bytes, 255 for more
  // A Block (greedy) or Extremes (random); none for small nodes and after loading.
  std::unique_ptr<std::uint64_t[]> cache = nullptr;

  [[nodiscard]] bool is_split() const noexcept { return left != 0; }
  [[nodiscard]] Verdict verdict() const noexcept {
    return {Verdict::Kind::split, attribute, threshold, saw_missing, missing_left, is_category};
  }
};

// The cache of a random node.
[[nodiscard]] inline Extremes& extremes_of(const Node& node) noexcept {
  return *std::launder(reinterpret_cast<Extremes*>(node.cache.get()));
}

class Tree {
 public:
  static constexpr NodeId kRoot = 0;

  Tree() = default;
  Tree(std::uint32_t n_lanes, bool regression);

  // Starts again as one unbuilt node with these rows.
  void reset(std::vector<Slot> rows, const Table& table);
  // The number of lanes grew: new classes. Caches are dropped.
  void widen(std::uint32_t n_lanes);
  // One unbuilt node again, with only the rows numbered below `n_slots`; needs no memory.
  void take_back(std::size_t n_slots, const Table& table) noexcept;
  // Gives every row the number that `renumbered` says.
  void renumber(std::span<const Slot> renumbered) noexcept;
  // Gives every column the number that `numbers` says; no node may be split by one that has none.
  void move_columns(std::span<const std::uint32_t> numbers) noexcept;

  [[nodiscard]] Node& node(NodeId id) noexcept { return nodes_[id]; }
  [[nodiscard]] const Node& node(NodeId id) const noexcept { return nodes_[id]; }
  [[nodiscard]] NodeId right_of(NodeId id) const noexcept { return nodes_[id].left + 1; }
  [[nodiscard]] std::span<std::int64_t> totals(NodeId id) noexcept {
    return {totals_.data() + std::size_t{id} * n_lanes_, n_lanes_};
  }
  [[nodiscard]] Lanes totals(NodeId id) const noexcept {
    return {totals_.data() + std::size_t{id} * n_lanes_, n_lanes_};
  }
  [[nodiscard]] Wide& squares(NodeId id) noexcept { return squares_[id]; }
  [[nodiscard]] const Wide& squares(NodeId id) const noexcept { return squares_[id]; }
  [[nodiscard]] Sums sums(NodeId id) const noexcept {
    return {totals(id), regression_ ? &squares_[id] : nullptr};
  }
  [[nodiscard]] std::int64_t weight(NodeId id) const noexcept { return sums(id).weight(); }
  void count(NodeId id, const RowView& row, int sign) noexcept {
    count_row(row, sign, totals(id), regression_ ? &squares_[id] : nullptr);
  }

  // Rows of a node without children.
  [[nodiscard]] std::span<Slot> rows_of(NodeId id) noexcept {
    return {rows_.data() + nodes_[id].begin, nodes_[id].size};
  }
  [[nodiscard]] std::span<const Slot> rows_of(NodeId id) const noexcept {
    return {rows_.data() + nodes_[id].begin, nodes_[id].size};
  }
  // Appends the rows of a whole subtree, except those marked in `doomed` (if given).
  void collect(NodeId id, const std::vector<std::uint8_t>* doomed, std::vector<Slot>& out) const;
  // Makes a node childless again, with all the rows of its subtree except the doomed ones.
  void collapse(NodeId id, Kind kind, const std::vector<std::uint8_t>* doomed) noexcept;
  // Two fresh children.
  void split(NodeId id);

  // Lays out the rows again; `added[i]` are the ascending new rows of the childless node
  // `where[i]`. Sizes of split nodes are already right.
  void insert(std::span<const NodeId> where, std::span<const std::vector<Slot>> added);

  // Counts the rows of a childless node again.
  void count_rows(NodeId id, const Table& table) noexcept;
  void recount(const Table& table) noexcept { count_rows(kRoot, table); }
  // Where NaN goes: as the split says, or to the heavier child (left if equal) if it saw none.
  [[nodiscard]] bool sends_missing_left(const Node& node) const noexcept {
    return node.saw_missing ? node.missing_left
                            : weight(node.left) >= weight(node.left + 1);
  }
  // Number of each node in preorder.
  [[nodiscard]] std::vector<std::int64_t> preorder() const;
  // Gives spare memory back.
  void shrink();

  // Hints to the processor that a node, its cache, or one of its rows is needed soon.
  void fetch(NodeId id) const noexcept;
  void fetch_cache(NodeId id) const noexcept;
  void fetch_row(NodeId id, std::size_t place) const noexcept;

  // Calls visit(id, key, depth) in preorder; it returns whether to go below that node.
  template <typename Visit>
  void walk(std::uint64_t root_key, Visit visit) const;

  [[nodiscard]] std::uint32_t n_lanes() const noexcept { return n_lanes_; }
  [[nodiscard]] bool is_regression() const noexcept { return regression_; }
  [[nodiscard]] std::size_t n_rows() const noexcept { return nodes_[kRoot].size; }
  [[nodiscard]] std::size_t n_nodes() const noexcept;
  [[nodiscard]] std::size_t n_unbuilt() const noexcept { return n_unbuilt_; }
  void set_kind(NodeId id, Kind kind) noexcept;
  [[nodiscard]] const Node* nodes() const noexcept { return nodes_.data(); }
  [[nodiscard]] std::size_t n_bytes() const noexcept;

 private:
  void wipe(NodeId id) noexcept;

  std::uint32_t n_lanes_ = 0;
  bool regression_ = false;
  std::vector<Node> nodes_;
  std::vector<std::int64_t> totals_;
  std::vector<Wide> squares_;  // regression: sum of w q^2
  std::vector<Slot> rows_;
  std::vector<NodeId> free_;   // first of each free pair of nodes
  std::vector<NodeId> stack_;  // working memory of `collapse`
  std::size_t n_unbuilt_ = 0;
};

template <typename Visit>
void Tree::walk(std::uint64_t root_key, Visit visit) const {
  struct Step {
    NodeId id;
    std::uint64_t key;
    std::uint32_t depth;
  };
  std::vector<Step> stack{{kRoot, root_key, 0}};
  while (!stack.empty()) {
    const Step step = stack.back();
    stack.pop_back();
    if (!visit(step.id, step.key, step.depth) || !nodes_[step.id].is_split()) {
      continue;
    }
    stack.push_back({right_of(step.id), right_key(step.key), step.depth + 1});
    stack.push_back({nodes_[step.id].left, left_key(step.key), step.depth + 1});
  }
}

}  // namespace letheon::forest
