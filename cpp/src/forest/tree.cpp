#include "letheon/forest/tree.hpp"

#include <algorithm>

namespace letheon::forest {

Tree::Tree(std::uint32_t n_lanes, bool regression) : n_lanes_(n_lanes), regression_(regression) {}

void Tree::reset(std::vector<Slot> rows, const Table& table) {
  nodes_.clear();
  // Two nodes, the second never used: the children of a split then share a cache line.
  nodes_.resize(2);
  totals_.assign(std::size_t{2} * n_lanes_, 0);
  squares_.assign(regression_ ? 2 : 0, 0);
  free_.clear();
  stack_.reserve(2);
  rows_ = std::move(rows);
  nodes_[kRoot].size = static_cast<std::uint32_t>(rows_.size());
  recount(table);
  n_unbuilt_ = 1;
}

void Tree::count_rows(NodeId id, const Table& table) noexcept {
  std::ranges::fill(totals(id), 0);
  if (regression_) {
    squares_[id] = 0;
  }
  for (const Slot slot : rows_of(id)) {
    const RowView row{nullptr, regression_ ? std::uint16_t{0} : table.label(slot),
                      regression_ ? table.q(slot) : 0, table.weight(slot)};
    count(id, row, +1);
  }
}

namespace {

void prefetch(const void* place) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(place, 0, 2);  // into the second cache: the first is small
#else
  static_cast<void>(place);
#endif
}

}  // namespace

void Tree::fetch(NodeId id) const noexcept {
  prefetch(&nodes_[id]);
  prefetch(totals(id).data());
}

void Tree::fetch_cache(NodeId id) const noexcept {
  const Node& node = nodes_[id];
  constexpr std::size_t kLine = 64;
  prefetch(totals(node.left).data());
  const auto* cache = reinterpret_cast<const std::byte*>(node.cache.get());
  for (std::size_t line = 0; cache != nullptr && line < node.cache_lines; ++line) {
    prefetch(cache + line * kLine);
  }
}

void Tree::fetch_row(NodeId id, std::size_t place) const noexcept {
  prefetch(rows_.data() + nodes_[id].begin + place);
}

std::vector<std::int64_t> Tree::preorder() const {
  std::vector<std::int64_t> numbers(nodes_.size(), -1);
  std::int64_t next = 0;
  walk(0, [&](NodeId id, std::uint64_t, std::uint32_t) {
    numbers[id] = next++;
    return true;
  });
  return numbers;
}

void Tree::shrink() {
  nodes_.shrink_to_fit();
  totals_.shrink_to_fit();
  squares_.shrink_to_fit();
}

void Tree::widen(std::uint32_t n_lanes) {
  std::vector<std::int64_t> totals(nodes_.size() * n_lanes, 0);
  for (std::size_t id = 0; id < nodes_.size(); ++id) {
    std::copy_n(totals_.data() + id * n_lanes_, n_lanes_, totals.data() + id * n_lanes);
    if (nodes_[id].kind == Kind::greedy) {
      nodes_[id].cache.reset();
    }
  }
  totals_ = std::move(totals);
  n_lanes_ = n_lanes;
}

void Tree::take_back(std::size_t n_slots, const Table& table) noexcept {
  collapse(kRoot, Kind::unbuilt, nullptr);
  const auto gone =
      std::ranges::remove_if(rows_of(kRoot), [=](Slot slot) { return slot >= n_slots; });
  nodes_[kRoot].size -= static_cast<std::uint32_t>(gone.size());
  n_lanes_ = table.n_lanes();
  std::ranges::fill(totals_, 0);  // all other nodes are free, and the lanes lie elsewhere now
  recount(table);
}

void Tree::renumber(std::span<const Slot> renumbered) noexcept {
  // Gaps between the rows hold numbers of removed rows; they are never read.
  for (Slot& slot : rows_) {
    slot = slot < renumbered.size() ? renumbered[slot] : 0;
  }
}

void Tree::move_columns(std::span<const std::uint32_t> numbers) noexcept {
  for (Node& node : nodes_) {
    if (!node.is_split()) {
      continue;
    }
    node.attribute = numbers[node.attribute];
    if (node.kind == Kind::greedy && node.cache != nullptr &&
        !Block(node.cache.get()).renumber(numbers)) {
      node.cache.reset();
    }
  }
}

bool Sums::is_pure() const noexcept {
  if (squares != nullptr) {
    // Equality in Cauchy and Schwarz: (sum w q)^2 = (sum w)(sum w q^2) iff all q are equal.
    const auto sum = static_cast<Wide>(lanes[1] < 0 ? -lanes[1] : lanes[1]);
    return sum * sum == static_cast<Wide>(lanes[0]) * *squares;
  }
  if (lanes.size() == 2) {
    return lanes[0] == 0 || lanes[1] == 0;
  }
  return std::ranges::count_if(lanes, [](auto lane) { return lane != 0; }) <= 1;
}

void count_row(const RowView& row, int sign, std::span<std::int64_t> lanes,
               Wide* squares) noexcept {
  const std::int64_t weight = sign * static_cast<std::int64_t>(row.weight);
  if (squares == nullptr) {
    lanes[row.label] += weight;
    return;
  }
  lanes[0] += weight;
  lanes[1] += weight * row.q;
  const Wide square = static_cast<Wide>(row.weight) * static_cast<Wide>(row.q * row.q);
  *squares += sign > 0 ? square : -square;
}

void Tree::set_kind(NodeId id, Kind kind) noexcept {
  n_unbuilt_ -= nodes_[id].kind == Kind::unbuilt ? 1 : 0;
  n_unbuilt_ += kind == Kind::unbuilt ? 1 : 0;
  nodes_[id].kind = kind;
}

void Tree::collect(NodeId id, const std::vector<std::uint8_t>* doomed,
                   std::vector<Slot>& out) const {
  std::vector<NodeId> stack{id};
  while (!stack.empty()) {
    const NodeId next = stack.back();
    stack.pop_back();
    if (nodes_[next].is_split()) {
      stack.push_back(right_of(next));
      stack.push_back(nodes_[next].left);
      continue;
    }
    for (const Slot slot : rows_of(next)) {
      if (doomed == nullptr || (*doomed)[slot] == 0) {
        out.push_back(slot);
      }
    }
  }
}

void Tree::collapse(NodeId id, Kind kind, const std::vector<std::uint8_t>* doomed) noexcept {
  std::uint32_t end = nodes_[id].begin;
  std::uint32_t last = end;
  stack_.assign(1, id);
  while (!stack_.empty()) {
    const NodeId next = stack_.back();
    stack_.pop_back();
    const Node& node = nodes_[next];
    if (node.is_split()) {
      stack_.push_back(node.left + 1);
      stack_.push_back(node.left);
      free_.push_back(node.left);
    } else {
      // Left subtrees are in front of right ones: rows only ever move towards the front.
      for (const Slot slot : rows_of(next)) {
        if (doomed == nullptr || (*doomed)[slot] == 0) {
          rows_[end++] = slot;
        }
      }
      last = node.begin + node.size;
    }
    if (next != id) {
      wipe(next);
    }
  }
  // Overwrites the old places, so that they reveal nothing.
  std::fill(rows_.begin() + end, rows_.begin() + std::max(end, last), 0);
  Node& node = nodes_[id];
  set_kind(id, kind);
  node.left = 0;
  node.attribute = 0;
  node.threshold = 0.0f;
  node.saw_missing = false;
  node.missing_left = false;
  node.is_category = false;
  node.cache.reset();
  node.size = end - node.begin;
}

void Tree::wipe(NodeId id) noexcept {
  set_kind(id, Kind::leaf);
  nodes_[id] = Node{.kind = Kind::leaf};
  std::ranges::fill(totals(id), 0);
  if (regression_) {
    squares_[id] = 0;
  }
}

void Tree::split(NodeId id) {
  if (free_.empty()) {
    const std::size_t first = nodes_.size();
    // Room for every later `collapse`, which must not fail.
    stack_.reserve(first + 2);
    free_.reserve(first / 2 + 1);
    totals_.resize((first + 2) * n_lanes_, 0);
    squares_.resize(regression_ ? first + 2 : 0, 0);
    nodes_.resize(first + 2);
    free_.push_back(static_cast<NodeId>(first));
  } else {
    nodes_[free_.back()].kind = Kind::unbuilt;
    nodes_[free_.back() + 1].kind = Kind::unbuilt;
  }
  nodes_[id].left = free_.back();
  free_.pop_back();
  n_unbuilt_ += 2;
}

void Tree::insert(std::span<const NodeId> where, std::span<const std::vector<Slot>> added) {
  std::vector<const std::vector<Slot>*> extra(nodes_.size(), nullptr);
  for (std::size_t i = 0; i < where.size(); ++i) {
    extra[where[i]] = &added[i];
  }
  std::vector<Slot> rows;
  std::size_t n_new = 0;
  for (const auto& slots : added) {
    n_new += slots.size();
  }
  rows.reserve(rows_.size() + n_new);
  std::vector<std::uint32_t> begins(nodes_.size(), 0);
  walk(0, [&](NodeId id, std::uint64_t, std::uint32_t) {
    begins[id] = static_cast<std::uint32_t>(rows.size());
    if (!nodes_[id].is_split()) {
      const auto held = rows_of(id);
      rows.insert(rows.end(), held.begin(), held.end());
      if (extra[id] != nullptr) {
        rows.insert(rows.end(), extra[id]->begin(), extra[id]->end());
      }
    }
    return true;
  });
  // Nothing below can fail.
  for (std::size_t id = 0; id < nodes_.size(); ++id) {
    nodes_[id].begin = begins[id];
    if (extra[id] != nullptr) {
      nodes_[id].size += static_cast<std::uint32_t>(extra[id]->size());
    }
  }
  rows_ = std::move(rows);
}

std::size_t Tree::n_nodes() const noexcept { return nodes_.size() - 1 - 2 * free_.size(); }

std::size_t Tree::n_bytes() const noexcept {
  std::size_t bytes = nodes_.capacity() * sizeof(Node) + totals_.capacity() * 8 +
                      squares_.capacity() * 16 + rows_.capacity() * 4 +
                      (free_.capacity() + stack_.capacity()) * 4;
  for (const Node& node : nodes_) {
    if (node.cache != nullptr) {
      bytes += node.kind == Kind::random ? sizeof(Extremes) : Block(node.cache.get()).n_bytes();
    }
  }
  return bytes;
}

}  // namespace letheon::forest
