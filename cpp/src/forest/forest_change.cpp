// What changes a forest: rows leave, rows come, unbuilt nodes are built.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "letheon/forest/forest.hpp"
#include "letheon/forest/forget.hpp"
#include "letheon/forest/grow.hpp"
#include "letheon/forest/learn.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::forest {

namespace {

constexpr std::size_t kTreesTogether = 8;

std::vector<std::uint8_t> marked(std::size_t n_slots, std::span<const Slot> slots) {
  std::vector<std::uint8_t> marks(n_slots, 0);
  for (const Slot slot : slots) {
    marks[slot] = 1;
  }
  return marks;
}

// Several trees in step: while one waits for memory, the others continue.
void walk_together(std::span<Forgetter> walks, bool eager) noexcept {
  for (bool going = true; going;) {
    going = false;
    for (const Forgetter& walk : walks) {
      walk.fetch_cache();
    }
    for (Forgetter& walk : walks) {
      going = walk.advance(eager) || going;
      walk.fetch_node();
    }
  }
}

Report sum(std::span<const Report> parts) noexcept {
  Report report;
  for (const Report& part : parts) {
    report += part;
  }
  return report;
}

}  // namespace

void Forest::require_held(std::span<const Slot> slots) const {
  const Table& table = content_.table;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= table.n_slots() || !table.is_alive(slots[i]) ||
        (i > 0 && slots[i - 1] >= slots[i])) {
      throw std::invalid_argument("slots must be held, ascending and distinct");
    }
  }
  if (slots.size() >= table.n_rows()) {
    throw std::invalid_argument("at least one row must be left");
  }
}

void Forest::choose_members(const RowBlock& block, std::size_t t,
                            std::vector<std::uint32_t>& members) const {
  members.clear();
  for (std::uint32_t i = 0; i < block.slots.size(); ++i) {
    if (is_member(content_.table, t, block.slots[i])) {
      members.push_back(i);
    }
  }
}

Report Forest::forget(std::span<const Slot> slots, bool eager, std::size_t n_threads) {
  const auto lock = changing();
  require_held(slots);
  Table& table = content_.table;
  auto& trees = content_.trees;
  const RowBlock leaving = table.copy(slots);
  const auto doomed = marked(table.n_slots(), slots);
  std::vector<Scratch> scratch(useful_threads(content_.trees.size(), n_threads));
  std::vector<Report> reports(scratch.size());
  // One walker per tree of a group; each worker uses its own again and again.
  std::vector<std::vector<Forgetter>> walkers(scratch.size());
  for (std::size_t worker = 0; worker < scratch.size(); ++worker) {
    for (std::size_t i = 0; i < std::min(kTreesTogether, trees.size()); ++i) {
      walkers[worker]
          .emplace_back(table, spec_, scratch[worker], leaving, doomed)
          .reserve(slots.size());
    }
  }
  const std::size_t n_groups = (trees.size() + kTreesTogether - 1) / kTreesTogether;
  run_tasks(n_groups, n_threads, [&](std::size_t worker, std::size_t group) {
    const std::size_t begin = group * kTreesTogether;
    const std::size_t end = std::min(begin + kTreesTogether, trees.size());
    const std::span walks(walkers[worker].data(), end - begin);
    for (std::size_t t = begin; t < end; ++t) {
      choose_members(leaving, t, walks[t - begin].members());
      walks[t - begin].start(trees[t], spec_.tree_keys[t]);
    }
    walk_together(walks, eager);
    for (const Forgetter& walk : walks) {
      reports[worker] += walk.report();
    }
  });
  content_.ids.erase(slots, doomed);
  Report report = sum(reports);
  report.emptied = table.erase(slots);
  if (table.rescale()) {
    reset_trees();
    report.rescaled = true;
    report.rebuilt_nodes = trees.size();
    report.rebuilt_rows = n_rows_of_trees();
    if (eager) {
      settle_if_possible(n_threads);
    }
  }
  return report;
}

std::size_t Forest::n_rows_of_trees() const noexcept {
  std::size_t n = 0;
  for (const Tree& tree : content_.trees) {
    n += tree.n_rows();
  }
  return n;
}

void Forest::reset_trees() noexcept {
  for (std::size_t t = 0; t < content_.trees.size(); ++t) {
    Tree& tree = content_.trees[t];
    tree.collapse(Tree::kRoot, Kind::unbuilt, nullptr);
    tree.recount(content_.table);
  }
}

Report Forest::forget_cost(std::span<const Slot> slots, std::size_t n_threads) const {
  const auto lock = reading();
  require_held(slots);
  const RowBlock leaving = content_.table.copy(slots);
  const auto doomed = marked(content_.table.n_slots(), slots);
  std::vector<Scratch> scratch(useful_threads(content_.trees.size(), n_threads));
  std::vector<Report> reports(scratch.size());
  run_tasks(content_.trees.size(), n_threads, [&](std::size_t worker, std::size_t t) {
    Forgetter forgetter(content_.table, spec_, scratch[worker], leaving, doomed);
    choose_members(leaving, t, forgetter.members());
    reports[worker] += forgetter.cost(content_.trees[t], spec_.tree_keys[t]);
  });
  Report report = sum(reports);
  if (content_.table.would_rescale(slots)) {
    report.rescaled = true;
    report.rebuilt_nodes = content_.trees.size();
    report.rebuilt_rows = n_rows_of_trees();
    for (std::size_t t = 0; t < content_.trees.size(); ++t) {
      for (const Slot slot : slots) {
        report.rebuilt_rows -= is_member(content_.table, t, slot) ? 1 : 0;
      }
    }
  }
  return report;
}

void Forest::compact() {
  const Table& table = content_.table;
  if (table.n_slots() == table.n_rows()) {
    return;
  }
  std::vector<Slot> kept;
  kept.reserve(table.n_rows());
  std::vector<Slot> renumbered(table.n_slots(), 0);
  for (Slot slot = 0; slot < table.n_slots(); ++slot) {
    if (table.is_alive(slot)) {
      renumbered[slot] = static_cast<Slot>(kept.size());
      kept.push_back(slot);
    }
  }
  // All that needs memory first; what follows cannot fail.
  IdTable ids = content_.ids.kept(kept);
  Table rows = table.kept(kept);
  content_.ids = std::move(ids);
  content_.table = std::move(rows);
  for (Tree& tree : content_.trees) {
    tree.renumber(renumbered);
  }
}

Report Forest::learn(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids, bool eager,
                     std::size_t n_threads) {
  const auto lock = changing();
  ids.validate();
  if (ids.size() != batch.X.n_rows) {
    throw std::invalid_argument("one id per row is needed");
  }
  if (!spec_.sample_keys.empty() && batch.owners.size() != batch.X.n_rows) {
    throw std::invalid_argument("subsampling needs one owner hash per row");
  }
  compact();
  Table& table = content_.table;
  auto& trees = content_.trees;
  const std::size_t n_before = table.n_slots();
  const std::uint32_t n_classes_before = table.n_classes();
  const auto slots = table.append(batch, n_classes);
  try {
    content_.ids.append(ids, rows_with_weight(batch));
  } catch (...) {
    table.take_back(n_before, n_classes_before);
    throw;
  }
  Report report;
  try {
    report = table.rescale() ? Report{.rescaled = true} : learn_slots(slots, n_threads);
    if (report.rescaled) {
      content_.trees = fresh_trees();
    }
  } catch (...) {
    // Short of memory half-way: without the new rows, regrowing all trees is always right, and needs
    // no memory.
    content_.ids.truncate(n_before);
    table.take_back(n_before, n_classes_before);
    table.rescale();
    for (Tree& tree : trees) {
      tree.take_back(n_before, table);
    }
    throw;
  }
  if (report.rescaled) {
    report.touched_trees = trees.size();
    report.rebuilt_nodes = trees.size();
    report.rebuilt_rows = n_rows_of_trees();
  }
  if (eager) {
    settle_if_possible(n_threads);
  }
  return report;
}

Report Forest::reweigh(std::span<const std::uint32_t> before,
                       std::span<const std::uint32_t> after) {
  const auto lock = changing();
  content_.table.reweigh(before, after);
  reset_trees();
  return {.rebuilt_rows = n_rows_of_trees(),
          .rebuilt_nodes = content_.trees.size(),
          .touched_trees = content_.trees.size(),
          .rescaled = true};
}

Report Forest::learn_slots(std::span<const Slot> slots, std::size_t n_threads) {
  const Table& table = content_.table;
  const RowBlock coming = table.copy(slots);
  std::vector<Scratch> scratch(useful_threads(content_.trees.size(), n_threads));
  std::vector<Report> reports(scratch.size());
  run_tasks(content_.trees.size(), n_threads, [&](std::size_t worker, std::size_t t) {
    Tree& tree = content_.trees[t];
    if (tree.n_lanes() != table.n_lanes()) {
      tree.widen(table.n_lanes());
    }
    std::vector<std::uint32_t> members;
    choose_members(coming, t, members);
    Learner learner(table, spec_, scratch[worker], coming);
    reports[worker] += learner.learn(tree, spec_.tree_keys[t], members);
  });
  return sum(reports);
}

std::vector<Tree> Forest::fresh_trees() const {
  const Table& table = content_.table;
  std::vector<Slot> slots(table.n_slots());
  std::iota(slots.begin(), slots.end(), Slot{0});
  std::vector<Tree> trees;
  for (std::size_t t = 0; t < spec_.tree_keys.size(); ++t) {
    trees.emplace_back(table.n_lanes(), spec_.is_regression());
    trees.back().reset(rows_of_tree(table, t, slots), table);
  }
  return trees;
}

void Forest::settle_if_possible(std::size_t n_threads) noexcept {
  try {
    settle_locked(n_threads);
  } catch (const std::bad_alloc&) {  // an unbuilt node is a legal state
  }
}

Report Forest::settle_locked(std::size_t n_threads) {
  std::vector<Scratch> scratch(useful_threads(content_.trees.size(), n_threads));
  std::vector<Report> reports(scratch.size());
  run_tasks(content_.trees.size(), n_threads, [&](std::size_t worker, std::size_t t) {
    Grower grower(content_.table, spec_, scratch[worker]);
    const std::size_t built = grower.settle(content_.trees[t], spec_.tree_keys[t]);
    reports[worker].rebuilt_nodes += built;
    reports[worker].touched_trees += built > 0 ? 1 : 0;
  });
  return sum(reports);
}

Report Forest::settle(std::size_t n_threads) {
  const auto lock = changing();
  // Holes cost a little memory and nothing else: close them when they are many.
  const std::size_t n_holes = content_.table.n_slots() - content_.table.n_rows();
  if (8 * n_holes > content_.table.n_slots()) {
    compact();
  }
  return settle_locked(n_threads);
}

}  // namespace letheon::forest
