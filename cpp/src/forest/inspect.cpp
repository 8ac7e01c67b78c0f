#include "letheon/forest/inspect.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "letheon/forest/score.hpp"

namespace letheon::forest {

namespace {

// Impurity of a node times its weight. Sums of integers first, so that neither the order of the
// classes nor a large mean of the target matters.
double impurity(const Tree& tree, NodeId id, Criterion criterion) {
  const Lanes lanes = tree.totals(id);
  const std::int64_t n = tree.weight(id);
  if (n == 0) {
    return 0.0;
  }
  const auto weight = static_cast<double>(n);
  if (criterion == Criterion::squared_error) {
    const auto sum = static_cast<Wide>(lanes[1] < 0 ? -lanes[1] : lanes[1]);
    return static_cast<double>(static_cast<Wide>(n) * tree.squares(id) - sum * sum) / weight;
  }
  std::int64_t total = 0;
  for (const std::int64_t lane : lanes) {
    total += criterion == Criterion::gini ? lane * lane : x_log_x(lane);
  }
  if (criterion == Criterion::gini) {
    return weight - static_cast<double>(total) / weight;
  }
  return static_cast<double>(x_log_x(n) - total);
}

// Order of rows that does not depend on how they came to be here.
class RowOrder {
 public:
  RowOrder(const Table& table, const IdTable& ids, std::span<const std::uint32_t> rank) noexcept
      : table_(table), ids_(ids), rank_(rank) {}

  bool operator()(Slot a, Slot b) const noexcept {
    if (const int order = ids_.compare(a, b); order != 0) {
      return order < 0;
    }
    for (std::size_t j = 0; j < table_.n_columns(); ++j) {
      const auto left = std::bit_cast<std::uint32_t>(table_.column(j).at(a));
      const auto right = std::bit_cast<std::uint32_t>(table_.column(j).at(b));
      if (left != right) {
        return left < right;
      }
    }
    if (target(a) != target(b)) {
      return target(a) < target(b);
    }
    return table_.weight(a) < table_.weight(b);
  }

 private:
  [[nodiscard]] std::uint64_t target(Slot slot) const noexcept {
    if (table_.is_regression()) {
      return std::bit_cast<std::uint64_t>(table_.y(slot));
    }
    const std::uint32_t code = table_.label(slot);
    return rank_.empty() ? code : rank_[code];
  }

  const Table& table_;
  const IdTable& ids_;
  std::span<const std::uint32_t> rank_;
};

std::vector<Slot> held_slots(const Table& table) {
  std::vector<Slot> slots;
  for (Slot slot = 0; slot < table.n_slots(); ++slot) {
    if (table.is_alive(slot)) {
      slots.push_back(slot);
    }
  }
  return slots;
}

void copy_ids(const IdTable& ids, std::span<const Slot> slots, RowsView& view) {
  view.is_text = ids.is_text();
  if (!view.is_text) {
    for (const Slot slot : slots) {
      view.ints.push_back(ids.int_at(slot));
    }
    return;
  }
  view.offsets.push_back(0);
  for (const Slot slot : slots) {
    const std::string& text = ids.text_at(slot);
    view.blob.insert(view.blob.end(), text.begin(), text.end());
    view.offsets.push_back(static_cast<std::int64_t>(view.blob.size()));
  }
}

}  // namespace

TreeView view_tree(const Tree& tree, int exponent) {
  TreeView view;
  const auto number = tree.preorder();
  view.width = tree.is_regression() ? 1 : tree.n_lanes();
  tree.walk(0, [&](NodeId id, std::uint64_t, std::uint32_t) {
    const Node& node = tree.node(id);
    const bool split = node.is_split();
    view.kind.push_back(!split ? 0 : (node.kind == Kind::greedy ? 1 : 2));
    view.attribute.push_back(split ? static_cast<std::int64_t>(node.attribute) : -1);
    view.threshold.push_back(split ? node.threshold : std::numeric_limits<float>::quiet_NaN());
    view.missing_left.push_back(split && tree.sends_missing_left(node) ? 1 : 0);
    view.left.push_back(split ? number[node.left] : -1);
    view.right.push_back(split ? number[node.left + 1] : -1);
    view.n_rows.push_back(node.size);
    view.weight.push_back(tree.weight(id));
    const Lanes lanes = tree.totals(id);
    if (tree.is_regression()) {
      const double mean =
          lanes[0] == 0 ? 0.0 : static_cast<double>(lanes[1]) / static_cast<double>(lanes[0]);
      view.values.push_back(std::ldexp(mean, exponent - 31));
    } else {
      for (const std::int64_t lane : lanes) {
        view.values.push_back(static_cast<double>(lane));
      }
    }
    return true;
  });
  return view;
}

RowsView view_ids(const Table& table, const IdTable& ids) {
  std::vector<Slot> slots = held_slots(table);
  std::ranges::stable_sort(slots, [&](Slot a, Slot b) { return ids.compare(a, b) < 0; });
  RowsView view;
  copy_ids(ids, slots, view);
  return view;
}

RowsView view_rows(const Table& table, const IdTable& ids, std::span<const std::uint32_t> rank) {
  std::vector<Slot> slots = held_slots(table);
  std::ranges::stable_sort(slots, RowOrder(table, ids, rank));
  RowsView view;
  view.X.resize(slots.size() * table.n_columns());
  for (std::size_t j = 0; j < table.n_columns(); ++j) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      view.X[i * table.n_columns() + j] = table.column(j).at(slots[i]);
    }
  }
  for (const Slot slot : slots) {
    view.weights.push_back(table.weight(slot));
    if (table.is_regression()) {
      view.y.push_back(table.y(slot));
    } else {
      const std::uint32_t code = table.label(slot);
      view.labels.push_back(rank.empty() ? code : rank[code]);
    }
  }
  copy_ids(ids, slots, view);
  return view;
}

std::vector<double> mean_importances(std::span<const Tree> trees, const Spec& spec) {
  std::vector<double> mean(spec.n_columns, 0.0);
  std::size_t n_trees = 0;
  for (const Tree& tree : trees) {
    std::vector<double> decrease(spec.n_columns, 0.0);
    double total = 0.0;
    tree.walk(0, [&](NodeId id, std::uint64_t, std::uint32_t) {
      const Node& node = tree.node(id);
      if (node.is_split()) {
        const double gain = impurity(tree, id, spec.criterion) -
                            impurity(tree, node.left, spec.criterion) -
                            impurity(tree, node.left + 1, spec.criterion);
        decrease[node.attribute] += gain;
        total += gain;
      }
      return true;
    });
    if (total > 0.0) {
      ++n_trees;
      for (std::size_t a = 0; a < mean.size(); ++a) {
        mean[a] += decrease[a] / total;
      }
    }
  }
  for (double& value : mean) {
    value = n_trees > 0 ? value / static_cast<double>(n_trees) : 0.0;
  }
  return mean;
}

}  // namespace letheon::forest
