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
