#include "letheon/forest/forest.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>

#include "letheon/forest/codec.hpp"
#include "letheon/forest/forget.hpp"
#include "letheon/forest/grow.hpp"
#include "letheon/forest/learn.hpp"
#include "letheon/forest/workers.hpp"

namespace letheon::forest {

namespace {

constexpr std::size_t kRowsTogether = 256;
constexpr std::size_t kTreesTogether = 8;

std::vector<std::size_t> rows_with_weight(const Batch& batch) {
  std::vector<std::size_t> rows;
  rows.reserve(batch.X.n_rows);
  for (std::size_t i = 0; i < batch.X.n_rows; ++i) {
    if (batch.weights.empty() || batch.weights[i] > 0) {
      rows.push_back(i);
    }
  }
  return rows;
}

std::vector<std::uint8_t> marked(std::size_t n_slots, std::span<const Slot> slots) {
  std::vector<std::uint8_t> marks(n_slots, 0);
  for (const Slot slot : slots) {
    marks[slot] = 1;
  }
  return marks;
}

// What is said without any tree.
std::vector<double> guess(const Table& table) {
  if (table.is_regression()) {
    return {0.0};
  }
  std::vector<double> shares;
  for (const std::int64_t weight : table.class_weights()) {
    shares.push_back(weight > 0 ? 1.0 : 0.0);
  }
  const double held = std::reduce(shares.begin(), shares.end());
  for (double& share : shares) {
    share /= held;
  }
  return shares;
}

// Several trees in step: while one waits for memory, the others go on.
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

std::uint64_t key_of_node(const Tree& tree, std::uint64_t root_key, NodeId wanted,
                          std::uint32_t& depth_out) {
  std::uint64_t found = 0;
  tree.walk(root_key, [&](NodeId id, std::uint64_t key, std::uint32_t depth) {
    if (id == wanted) {
      found = key;
      depth_out = depth;
    }
    return true;
  });
  return found;
}

}  // namespace

Forest::Forest(Spec spec, Key hash_key) : spec_(std::move(spec)), hash_key_(hash_key) {
  spec_.validate();
}

bool Forest::is_member(const Table& table, std::size_t t, Slot slot) const noexcept {
  return spec_.sample_keys.empty() ||
         mix64(spec_.sample_keys[t], table.owner(slot)) < spec_.sample_limit;
}

std::vector<Slot> Forest::rows_of_tree(const Table& table, std::size_t t,
                                       std::span<const Slot> slots) const {
  std::vector<Slot> rows;
  if (spec_.sample_keys.empty()) {
    rows.assign(slots.begin(), slots.end());
    return rows;
  }
  for (const Slot slot : slots) {
    if (is_member(table, t, slot)) {
      rows.push_back(slot);
    }
  }
  rows.shrink_to_fit();
  return rows;
}

Forest::Content Forest::hold(const Batch& batch, std::uint32_t n_classes,
                             const IdBatch& ids) const {
  if (!spec_.sample_keys.empty() && batch.owners.size() != batch.X.n_rows) {
    throw std::invalid_argument("subsampling needs one owner hash per row");
  }
  ids.validate();
  if (ids.size() != batch.X.n_rows) {
    throw std::invalid_argument("one id per row is needed");
  }
  Content content{Table(spec_.n_columns, spec_.is_regression(), spec_.y_exponent),
                  IdTable(hash_key_), {}};
  const auto slots = content.table.append(batch, n_classes);
  if (slots.empty()) {
    throw std::invalid_argument("there is no row of positive weight");
  }
  content.table.rescale();
  content.ids.append(ids, rows_with_weight(batch));
  const std::uint32_t n_lanes = content.table.n_lanes();
  for (std::size_t t = 0; t < spec_.tree_keys.size(); ++t) {
    content.trees.emplace_back(n_lanes, spec_.is_regression());
    content.trees.back().reset(rows_of_tree(content.table, t, slots), content.table);
  }
  return content;
}

void Forest::fit(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids,
                 std::size_t n_threads) {
  Content content = hold(batch, n_classes, ids);
  std::vector<Scratch> scratch(std::max<std::size_t>(n_threads, 1));
  run_tasks(content.trees.size(), n_threads, [&](std::size_t worker, std::size_t t) {
    Grower(content.table, spec_, scratch[worker]).settle(content.trees[t], spec_.tree_keys[t]);
    content.trees[t].shrink();
  });
  const std::unique_lock lock(mutex_);
  content_ = std::move(content);
}

void Forest::restore(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids,
                     std::span<const Bytes> blocks, std::size_t n_threads) {
  Content content = hold(batch, n_classes, ids);
  std::vector<Bytes> parts;
  for (const Bytes block : blocks) {
    const auto trees = split_trees(block, n_classes, spec_);
    parts.insert(parts.end(), trees.begin(), trees.end());
  }
  if (parts.size() != content.trees.size()) {
    throw std::invalid_argument("the number of trees is not that of the settings");
  }
  run_tasks(content.trees.size(), n_threads, [&](std::size_t, std::size_t t) {
    read_tree(parts[t], content.table, spec_, content.trees[t]);
  });
  const std::unique_lock lock(mutex_);
  content_ = std::move(content);
}

Found Forest::find(const IdBatch& wanted) const {
  const std::shared_lock lock(mutex_);
  return content_.ids.find(wanted);
}

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
  const std::unique_lock lock(mutex_);
  require_held(slots);
  Table& table = content_.table;
  auto& trees = content_.trees;
  const RowBlock leaving = table.copy(slots);
  const auto doomed = marked(table.n_slots(), slots);
  std::vector<Scratch> scratch(std::max<std::size_t>(n_threads, 1));
  std::vector<Report> reports(scratch.size());
  // One walker per tree of a group; each worker uses its own again and again.
  std::vector<std::vector<Forgetter>> walkers(scratch.size());
  for (std::size_t worker = 0; worker < scratch.size(); ++worker) {
    for (std::size_t i = 0; i < std::min(kTreesTogether, trees.size()); ++i) {
      walkers[worker].emplace_back(table, spec_, scratch[worker], leaving, doomed);
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
      settle_locked(n_threads);
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
  const std::shared_lock lock(mutex_);
  require_held(slots);
  const RowBlock leaving = content_.table.copy(slots);
  const auto doomed = marked(content_.table.n_slots(), slots);
  std::vector<Scratch> scratch(std::max<std::size_t>(n_threads, 1));
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
  if (content_.table.n_slots() == content_.table.n_rows()) {
    return;
  }
  std::vector<Slot> kept;
  for (Slot slot = 0; slot < content_.table.n_slots(); ++slot) {
    if (content_.table.is_alive(slot)) {
      kept.push_back(slot);
    }
  }
  content_.ids.keep(kept);
  const auto renumbered = content_.table.compact();
  for (Tree& tree : content_.trees) {
    tree.renumber(renumbered);
  }
}

Report Forest::learn(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids, bool eager,
                     std::size_t n_threads) {
  const std::unique_lock lock(mutex_);
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
  } catch (...) {
    report.rescaled = true;  // short of memory half-way: all trees anew is always right
  }
  if (report.rescaled) {
    start_trees_again();
    report.touched_trees = trees.size();
    report.rebuilt_nodes = trees.size();
    report.rebuilt_rows = n_rows_of_trees();
  }
  if (eager) {
    settle_locked(n_threads);
  }
  return report;
}

Report Forest::learn_slots(std::span<const Slot> slots, std::size_t n_threads) {
  const Table& table = content_.table;
  const RowBlock coming = table.copy(slots);
  std::vector<Scratch> scratch(std::max<std::size_t>(n_threads, 1));
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

void Forest::start_trees_again() {
  const Table& table = content_.table;
  std::vector<Slot> slots(table.n_slots());
  std::iota(slots.begin(), slots.end(), Slot{0});
  for (std::size_t t = 0; t < content_.trees.size(); ++t) {
    Tree tree(table.n_lanes(), spec_.is_regression());
    tree.reset(rows_of_tree(table, t, slots), table);
    content_.trees[t] = std::move(tree);
  }
}

Report Forest::settle_locked(std::size_t n_threads) {
  std::vector<Scratch> scratch(std::max<std::size_t>(n_threads, 1));
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
  const std::unique_lock lock(mutex_);
  // Holes cost a little memory and nothing else: close them when they are many.
  const std::size_t n_holes = content_.table.n_slots() - content_.table.n_rows();
  if (8 * n_holes > content_.table.n_slots()) {
    compact();
  }
  return settle_locked(n_threads);
}

void Forest::build(const Missing& missing) {
  Scratch scratch;
  for (const auto& [t, id] : missing) {
    Tree& tree = content_.trees[t];
    if (tree.node(id).kind != Kind::unbuilt) {
      continue;
    }
    std::uint32_t depth = 0;
    const std::uint64_t key = key_of_node(tree, spec_.tree_keys[t], id, depth);
    Grower(content_.table, spec_, scratch).build(tree, id, key, depth);
  }
}

// False if nodes are missing that must be built first.
bool Forest::answer(const MatrixView& X, std::size_t n_threads, Answer& answer,
                    Missing& missing) const {
  const auto& trees = content_.trees;
  if (trees.empty()) {
    throw std::invalid_argument("this forest is not fitted");
  }
  answer.width = spec_.is_regression() ? 1 : content_.table.n_classes();
  answer.values.assign(X.n_rows * answer.width, 0.0);
  std::size_t n_trees = 0;
  for (const Tree& tree : trees) {
    n_trees += tree.n_rows() > 0 ? 1 : 0;
  }
  // Subsampling can leave all trees without rows: then every class held is as likely.
  const auto without_trees = n_trees > 0 ? std::vector<double>{} : guess(content_.table);
  const int scale = content_.table.exponent() - 31;
  const std::size_t n_blocks = (X.n_rows + kRowsTogether - 1) / kRowsTogether;
  std::mutex guard;
  run_tasks(n_blocks, n_threads, [&](std::size_t, std::size_t b) {
    const std::size_t begin = b * kRowsTogether;
    const std::size_t end = std::min(begin + kRowsTogether, X.n_rows);
    std::array<NodeId, kRowsTogether> leaves;
    double* const out = answer.values.data() + begin * answer.width;
    require_finite(X, begin, end);
    for (std::uint32_t t = 0; t < trees.size(); ++t) {
      if (trees[t].n_rows() == 0) {
        continue;
      }
      find_leaves(trees[t], X, begin, end, leaves.data());
      if (trees[t].n_unbuilt() > 0) {
        const std::scoped_lock lock(guard);
        for (std::size_t i = 0; i < end - begin; ++i) {
          if (trees[t].node(leaves[i]).kind == Kind::unbuilt) {
            missing.emplace_back(t, leaves[i]);
          }
        }
      }
      add_leaves(trees[t], {leaves.data(), end - begin}, scale, out);
    }
    const std::size_t n_values = (end - begin) * answer.width;
    for (std::size_t k = 0; k < n_values; ++k) {
      out[k] = n_trees > 0 ? out[k] / static_cast<double>(n_trees) : without_trees[k % answer.width];
    }
  });
  std::ranges::sort(missing);
  const auto repeated = std::ranges::unique(missing);
  missing.erase(repeated.begin(), repeated.end());
  return missing.empty();
}

Answer Forest::predict(const MatrixView& X, std::size_t n_threads) {
  if (X.n_columns != spec_.n_columns) {
    throw std::invalid_argument("X has " + std::to_string(X.n_columns) +
                                " columns; this forest has " + std::to_string(spec_.n_columns));
  }
  Answer result;
  Missing missing;
  {
    const std::shared_lock lock(mutex_);
    if (answer(X, n_threads, result, missing)) {
      return result;
    }
  }
  // Nodes are missing: build those that the rows reach, until none is missing. Nobody can drop
  // any in between.
  const std::unique_lock lock(mutex_);
  missing.clear();
  while (!answer(X, n_threads, result, missing)) {
    build(missing);
    missing.clear();
  }
  return result;
}

template <typename Read>
auto Forest::settled(Read read, std::size_t n_threads) {
  {
    const std::shared_lock lock(mutex_);
    if (std::ranges::all_of(content_.trees, [](const Tree& t) { return t.n_unbuilt() == 0; })) {
      return read();
    }
  }
  const std::unique_lock lock(mutex_);
  settle_locked(n_threads);
  return read();
}

std::vector<std::int64_t> Forest::apply(const MatrixView& X, std::size_t n_threads) {
  if (X.n_columns != spec_.n_columns) {
    throw std::invalid_argument("X has " + std::to_string(X.n_columns) +
                                " columns; this forest has " + std::to_string(spec_.n_columns));
  }
  require_finite(X, 0, X.n_rows);
  return settled(
      [&] {
        const auto& trees = content_.trees;
        std::vector<std::int64_t> numbers(X.n_rows * trees.size());
        run_tasks(trees.size(), n_threads, [&](std::size_t, std::size_t t) {
          std::vector<NodeId> leaves(X.n_rows);
          find_leaves(trees[t], X, 0, X.n_rows, leaves.data());
          const auto preorder = trees[t].preorder();
          for (std::size_t i = 0; i < X.n_rows; ++i) {
            numbers[i * trees.size() + t] = preorder[leaves[i]];
          }
        });
        return numbers;
      },
      n_threads);
}

std::vector<std::uint8_t> Forest::trees_bytes(std::span<const std::uint32_t> order,
                                              std::size_t n_threads) {
  return settled([&] { return write_trees(content_.trees, order, spec_); }, n_threads);
}

TreeView Forest::tree(std::size_t index) {
  return settled(
      [&] {
        if (index >= content_.trees.size()) {
          throw std::invalid_argument("there is no tree of that number");
        }
        return view_tree(content_.trees[index], content_.table.exponent());
      },
      1);
}

std::vector<double> Forest::importances(std::size_t n_threads) {
  return settled([&] { return mean_importances(content_.trees, spec_); }, n_threads);
}

std::vector<std::int64_t> Forest::class_counts() const {
  const std::shared_lock lock(mutex_);
  const Table& table = content_.table;
  return table.class_weights();
}

RowsView Forest::rows(std::span<const std::uint32_t> order) const {
  const std::shared_lock lock(mutex_);
  std::vector<std::uint32_t> rank(content_.table.n_classes(), 0);
  for (std::size_t place = 0; place < order.size(); ++place) {
    if (order[place] >= rank.size()) {
      throw std::invalid_argument("the order names a class that is not there");
    }
    rank[order[place]] = static_cast<std::uint32_t>(place);
  }
  return view_rows(content_.table, content_.ids, rank);
}

RowsView Forest::ids() const {
  const std::shared_lock lock(mutex_);
  return view_ids(content_.table, content_.ids);
}

std::size_t Forest::n_rows() const {
  const std::shared_lock lock(mutex_);
  return content_.table.n_rows();
}

std::size_t Forest::n_unbuilt() const {
  const std::shared_lock lock(mutex_);
  std::size_t n = 0;
  for (const Tree& tree : content_.trees) {
    n += tree.n_unbuilt();
  }
  return n;
}

std::size_t Forest::n_nodes() const {
  const std::shared_lock lock(mutex_);
  std::size_t n = 0;
  for (const Tree& tree : content_.trees) {
    n += tree.n_nodes();
  }
  return n;
}

std::size_t Forest::n_bytes() const {
  const std::shared_lock lock(mutex_);
  std::size_t n = content_.table.n_bytes() + content_.ids.n_bytes();
  for (const Tree& tree : content_.trees) {
    n += tree.n_bytes();
  }
  return n;
}

}  // namespace letheon::forest
