// The arena of nodes: splitting, collapsing, new rows, new numbers.
#include "letheon/forest/tree.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/grow.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using forest::Kind;
using forest::NodeId;
using letheon::Slot;
using forest::Tree;
using letheon::testing::check;
using letheon::testing::Luck;
using letheon::testing::People;

constexpr std::uint64_t kKey = 42;

struct Grown {
  letheon::Table table;
  forest::Spec spec;
  Tree tree;
};

Grown grow(std::uint32_t n_classes, std::size_t n_rows = 200) {
  Luck luck(n_classes);
  const People people = random_people(luck, {.n_rows = n_rows, .n_classes = n_classes});
  Grown grown{letheon::Table(4, n_classes == 0, std::nullopt), {}, {}};
  grown.spec.criterion =
      n_classes == 0 ? forest::Criterion::squared_error : forest::Criterion::gini;
  grown.spec.n_columns = 4;
  grown.spec.max_features = 4;
  grown.spec.n_thresholds = 5;
  grown.spec.tree_keys = {kKey};
  const auto slots = grown.table.append(people.batch(), n_classes);
  grown.table.rescale();
  grown.tree = Tree(grown.table.n_lanes(), n_classes == 0);
  grown.tree.reset(slots, grown.table);
  forest::Scratch scratch;
  forest::Grower(grown.table, grown.spec, scratch).settle(grown.tree, kKey);
  return grown;
}

std::vector<Slot> rows_below(const Tree& tree, NodeId id) {
  std::vector<Slot> rows;
  tree.collect(id, nullptr, rows);
  std::ranges::sort(rows);
  return rows;
}

// Sizes, sums and places of all nodes fit together.
void check_sound(const Grown& grown) {
  const Tree& tree = grown.tree;
  std::size_t n_nodes = 0;
  std::size_t n_unbuilt = 0;
  tree.walk(kKey, [&](NodeId id, std::uint64_t, std::uint32_t) {
    const forest::Node& node = tree.node(id);
    ++n_nodes;
    n_unbuilt += node.kind == Kind::unbuilt ? 1 : 0;
    const auto rows = rows_below(tree, id);
    check(rows.size() == node.size, "the size of a node is that of its rows");
    std::vector<std::int64_t> lanes(tree.n_lanes(), 0);
    forest::Wide squares = 0;
    for (const Slot slot : rows) {
      const bool regression = tree.is_regression();
      const forest::RowView row{nullptr, regression ? std::uint16_t{0} : grown.table.label(slot),
                                regression ? grown.table.q(slot) : 0, grown.table.weight(slot)};
      forest::count_row(row, +1, lanes, regression ? &squares : nullptr);
    }
    check(std::ranges::equal(tree.totals(id), lanes), "and so are its sums");
    check(!tree.is_regression() || tree.squares(id) == squares, "and its squares");
    if (node.is_split()) {
      check(tree.node(node.left).size + tree.node(node.left + 1).size == node.size,
            "children share the rows");
    }
    return true;
  });
  check(tree.n_nodes() == n_nodes, "the number of nodes");
  check(tree.n_unbuilt() == n_unbuilt, "the number of unbuilt ones");
}

NodeId inner_node(const Tree& tree, std::uint32_t wanted_depth) {
  NodeId found = Tree::kRoot;
  tree.walk(kKey, [&](NodeId id, std::uint64_t, std::uint32_t depth) {
    if (depth == wanted_depth && tree.node(id).is_split()) {
      found = id;
    }
    return true;
  });
  return found;
}

void collapsing(std::uint32_t n_classes) {
  Grown grown = grow(n_classes);
  check_sound(grown);
  const std::size_t n_bytes_nodes = grown.tree.n_nodes();
  const NodeId id = inner_node(grown.tree, 2);
  const auto rows = rows_below(grown.tree, id);
  const auto all = rows_below(grown.tree, Tree::kRoot);
  grown.tree.collapse(id, Kind::unbuilt, nullptr);
  check(!grown.tree.node(id).is_split() && grown.tree.node(id).cache == nullptr, "a leaf now");
  check(rows_below(grown.tree, id) == rows, "all its rows are there");
  check(rows_below(grown.tree, Tree::kRoot) == all, "and all others");
  check(grown.tree.n_nodes() < n_bytes_nodes && grown.tree.n_unbuilt() == 1, "nodes are free");
  check_sound(grown);
  forest::Scratch scratch;
  check(forest::Grower(grown.table, grown.spec, scratch).settle(grown.tree, kKey) == 1, "one node");
  check_sound(grown);
  check(grown.tree.n_nodes() == n_bytes_nodes, "the same tree again, in the freed nodes");
}

void freed_nodes_are_used_again() {
  Grown grown = grow(2);
  std::size_t n_bytes = 0;
  for (int round = 0; round < 20; ++round) {
    grown.tree.collapse(round % 2 == 0 ? Tree::kRoot : inner_node(grown.tree, 1), Kind::unbuilt,
                        nullptr);
    forest::Scratch scratch;
    forest::Grower(grown.table, grown.spec, scratch).settle(grown.tree, kKey);
    check(round == 0 || grown.tree.n_bytes() == n_bytes, "the arena does not grow");
    n_bytes = grown.tree.n_bytes();
  }
  check_sound(grown);
}

void the_doomed_do_not_come_back(std::uint32_t n_classes) {
  Grown grown = grow(n_classes);
  const NodeId id = inner_node(grown.tree, 1);
  std::vector<std::uint8_t> doomed(grown.table.n_slots(), 0);
  std::vector<Slot> wanted;
  for (const Slot slot : rows_below(grown.tree, id)) {
    doomed[slot] = slot % 3 == 0 ? 1 : 0;
    if (doomed[slot] == 0) {
      wanted.push_back(slot);
    }
  }
  std::vector<Slot> collected;
  grown.tree.collect(id, &doomed, collected);
  std::ranges::sort(collected);
  check(collected == wanted, "collected without the doomed");
  grown.tree.collapse(id, Kind::leaf, &doomed);
  check(rows_below(grown.tree, id) == wanted, "collapsed without the doomed");
  check(grown.tree.n_unbuilt() == 0, "a leaf is built");
}

void inserting() {
  Grown grown = grow(3);
  const std::size_t n_before = grown.tree.n_rows();
  std::vector<NodeId> leaves;
  grown.tree.walk(kKey, [&](NodeId id, std::uint64_t, std::uint32_t) {
    if (!grown.tree.node(id).is_split()) {
      leaves.push_back(id);
    }
    return true;
  });
  const std::vector<NodeId> where{leaves.front(), leaves.back(), leaves[leaves.size() / 2]};
  const std::vector<std::vector<Slot>> added{{1000, 1001}, {1002}, {}};
  std::vector<std::vector<Slot>> wanted;
  for (const NodeId id : leaves) {
    wanted.push_back(rows_below(grown.tree, id));
  }
  grown.tree.insert(where, added);
  wanted.front().insert(wanted.front().end(), {1000, 1001});
  wanted.back().push_back(1002);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto rows = grown.tree.rows_of(leaves[i]);
    check(std::ranges::equal(rows, wanted[i]), "ascending, the new rows last");
  }
  std::vector<Slot> all;
  grown.tree.collect(Tree::kRoot, nullptr, all);
  check(all.size() == n_before + 3, "nobody is lost");
}

void taking_back() {
  Grown grown = grow(0);
  grown.tree.take_back(150, grown.table);
  const auto rows = rows_below(grown.tree, Tree::kRoot);
  check(rows.size() == 150 && rows.back() == 149, "only the first rows");
  check(grown.tree.n_nodes() == 1 && grown.tree.n_unbuilt() == 1, "in one unbuilt node");
  check_sound(grown);
}

void renumbering() {
  Grown grown = grow(2);
  const auto before = rows_below(grown.tree, Tree::kRoot);
  std::vector<Slot> renumbered(grown.table.n_slots());
  for (Slot slot = 0; slot < renumbered.size(); ++slot) {
    renumbered[slot] = slot / 2;
  }
  grown.tree.renumber(renumbered);
  std::vector<Slot> wanted;
  for (const Slot slot : before) {
    wanted.push_back(slot / 2);
  }
  check(rows_below(grown.tree, Tree::kRoot) == wanted, "every row has its new number");
}

void widening() {
  Grown grown = grow(2);
  const std::vector<std::int64_t> before(grown.tree.totals(0).begin(), grown.tree.totals(0).end());
  grown.tree.widen(4);
  check(grown.tree.totals(0).size() == 4 && grown.tree.totals(0)[1] == before[1] &&
            grown.tree.totals(0)[3] == 0,
        "old sums, and zero for the new classes");
  bool cached = false;
  grown.tree.walk(kKey, [&](NodeId id, std::uint64_t, std::uint32_t) {
    cached = cached || grown.tree.node(id).cache != nullptr;
    return true;
  });
  check(!cached, "caches of the old width are gone");
}

void preorder_numbers() {
  const Grown grown = grow(2);
  const auto numbers = grown.tree.preorder();
  std::int64_t next = 0;
  grown.tree.walk(kKey, [&](NodeId id, std::uint64_t, std::uint32_t) {
    check(numbers[id] == next++, "numbered as walked");
    return true;
  });
}

void purity() {
  Luck luck(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int64_t> lanes(2, 0);
    forest::Wide squares = 0;
    const bool pure = luck.one_in(2);
    const std::int64_t first = std::int64_t{luck.below(std::uint64_t{1} << 32)} - (1LL << 31);
    const std::uint32_t n = 1 + luck.below(5);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::int64_t q = i + 1 == n && !pure && n > 1 ? first + (first > 0 ? -1 : 1) : first;
      forest::count_row({nullptr, 0, q, 1 + luck.below(1u << 28)}, +1, lanes, &squares);
    }
    const forest::Sums sums{lanes, &squares};
    check(sums.is_pure() == (pure || n == 1), "one q only, to the last unit");
  }
}

}  // namespace

int main() {
  for (const std::uint32_t n_classes : {0u, 2u, 3u}) {
    collapsing(n_classes);
    the_doomed_do_not_come_back(n_classes);
  }
  freed_nodes_are_used_again();
  inserting();
  taking_back();
  renumbering();
  widening();
  preorder_numbers();
  purity();
  return letheon::testing::result();
}
