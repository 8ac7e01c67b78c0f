#include "letheon/forest/forest.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "letheon/forest/codec.hpp"
#include "letheon/forest/grow.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::forest {

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
  std::vector<Scratch> scratch(useful_threads(content.trees.size(), n_threads));
  run_tasks(content.trees.size(), n_threads, [&](std::size_t worker, std::size_t t) {
    Grower(content.table, spec_, scratch[worker]).settle(content.trees[t], spec_.tree_keys[t]);
    content.trees[t].shrink();
    progress_.add();
  });
  const auto lock = changing();
  content_ = std::move(content);
}

void Forest::restore(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids,
                     std::span<const Bytes> blocks, std::size_t n_threads) {
  std::vector<Bytes> parts;
  for (const Bytes block : blocks) {
    const auto trees = split_trees(block, n_classes, spec_);
    parts.insert(parts.end(), trees.begin(), trees.end());
  }
  if (parts.size() != spec_.tree_keys.size()) {
    throw std::invalid_argument("the number of trees is not that of the settings");
  }
  Content content = hold(batch, n_classes, ids);
  run_tasks(content.trees.size(), n_threads, [&](std::size_t, std::size_t t) {
    read_tree(parts[t], content.table, spec_, content.trees[t]);
  });
  const auto lock = changing();
  content_ = std::move(content);
}

Found Forest::find(const IdBatch& wanted) const {
  const auto lock = reading();
  return content_.ids.find(wanted);
}

std::size_t Forest::n_rows() const {
  const auto lock = reading();
  return content_.table.n_rows();
}

std::size_t Forest::n_unbuilt() const {
  const auto lock = reading();
  std::size_t n = 0;
  for (const Tree& tree : content_.trees) {
    n += tree.n_unbuilt();
  }
  return n;
}

std::size_t Forest::n_nodes() const {
  const auto lock = reading();
  std::size_t n = 0;
  for (const Tree& tree : content_.trees) {
    n += tree.n_nodes();
  }
  return n;
}

std::size_t Forest::n_bytes() const {
  const auto lock = reading();
  std::size_t n = content_.table.n_bytes() + content_.ids.n_bytes();
  for (const Tree& tree : content_.trees) {
    n += tree.n_bytes();
  }
  return n;
}

}  // namespace letheon::forest
