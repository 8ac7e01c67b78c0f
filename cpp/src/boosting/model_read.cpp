// What is asked of a model: predictions, trees, rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/model.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::boosting {

namespace {

// Below this many rows, walking each tree is faster than a whole block.
constexpr std::size_t kFewRows = 24;

void require_finite(const MatrixView& X, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t j = 0; j < X.n_columns; ++j) {
      if (std::isinf(X.at(i, j))) {
        throw std::invalid_argument("X holds infinity or a value too large for float32 in row " +
                                    std::to_string(i) + ", column " + std::to_string(j));
      }
    }
  }
}

struct NodeSums {
  double g = 0.0;
  double h = 0.0;
};

// Sums of a node and, below it, the gains of the splits.
NodeSums add_gains(const Tree& tree, int node, double l2, std::vector<double>& gains) {
  if (node < 0) {
    const Leaf& leaf = tree.leaves[static_cast<std::size_t>(-1 - node)];
    return {static_cast<double>(leaf.g), static_cast<double>(leaf.h)};
  }
  const Split& split = tree.splits[static_cast<std::size_t>(node)];
  const NodeSums left = add_gains(tree, split.left, l2, gains);
  const NodeSums right = add_gains(tree, split.right, l2, gains);
  const NodeSums both{left.g + right.g, left.h + right.h};
  const auto score = [&](const NodeSums& sums) {
    return sums.h + l2 > 0.0 ? sums.g * sums.g / (sums.h + l2) : 0.0;
  };
  gains[split.column] += std::max(0.0, score(left) + score(right) - score(both));
  return both;
}

}  // namespace

template <typename Read>
auto Model::settled(Read read, std::size_t n_threads) {
  {
    const auto lock = gate_.reading();
    if (content_.settled == spec_.n_rounds) {
      return read();
    }
  }
  const auto lock = gate_.changing();
  settle_content(content_, n_threads);
  return read();
}

void Model::predict_block(const MatrixView& X, std::size_t begin, std::size_t n,
                          std::uint32_t n_rounds, Coder::Scratch& scratch,
                          std::int32_t* steps) const {
  const std::size_t n_outputs = content_.frame.n_outputs;
  const auto add = [&](std::size_t t, std::size_t i, std::uint8_t leaf) {
    steps[i * n_outputs + t % n_outputs] += content_.trees[t].leaves[leaf].step;
  };
  for (std::size_t i = 0; i < n; ++i) {
    std::ranges::copy(content_.frame.base, steps + i * n_outputs);
  }
  std::array<std::uint8_t, kBlockRows> leaves;
  for (std::size_t chain = 0; chain < spec_.n_chains; ++chain) {
    const std::size_t first = spec_.first_round(chain) * n_outputs;
    const std::size_t last = std::min(spec_.first_round(chain + 1), n_rounds) * n_outputs;
    if (n > kFewRows && first < last) {
      content_.coders[chain].read(X, begin, n, scratch);
    }
    for (std::size_t t = first; t < last; ++t) {
      if (n > kFewRows) {
        content_.coders[chain].find_leaves(t - first, scratch, leaves.data());
      }
      for (std::size_t i = 0; i < n; ++i) {
        add(t, i, n > kFewRows ? leaves[i] : content_.trees[t].leaf_of([&](std::uint32_t column) {
          return X.at(begin + i, column);
        }));
      }
    }
  }
}

Scores Model::predict(const MatrixView& X, std::uint32_t n_rounds, std::size_t n_threads) {
  return settled(
      [&] {
        if (content_.trees.empty() || X.n_columns != spec_.n_columns) {
          throw std::invalid_argument("X has " + std::to_string(X.n_columns) +
                                      " columns; this model has " +
                                      std::to_string(content_.table.n_columns()));
        }
        const Frame& frame = content_.frame;
        Scores scores{frame.n_outputs, std::vector<double>(X.n_rows * frame.n_outputs)};
        const std::size_t n_blocks = (X.n_rows + kBlockRows - 1) / kBlockRows;
        std::vector<Coder::Scratch> scratch(useful_threads(n_blocks, n_threads));
        const ScoreScale scale = scale_of(frame);
        run_tasks(n_blocks, n_threads, [&](std::size_t worker, std::size_t block) {
          const std::size_t begin = block * kBlockRows;
          const std::size_t n = std::min(kBlockRows, X.n_rows - begin);
          require_finite(X, begin, begin + n);
          std::vector<std::int32_t> steps(n * frame.n_outputs);
          predict_block(X, begin, n, n_rounds, scratch[worker], steps.data());
          for (std::size_t i = 0; i < steps.size(); ++i) {
            scores.values[begin * frame.n_outputs + i] =
                std::ldexp(static_cast<double>(steps[i]), scale.exponent) + scale.offset;
          }
        });
        return scores;
      },
      n_threads);
}

ScoreScale Model::scale_of(const Frame& frame) const {
  // A step of a squared loss is a part of the scale of y.
  const bool squared = spec_.loss == Loss::squared;
  const int unit = squared ? frame.y_exponent - 31 : 0;
  const double offset =
      squared ? std::ldexp(static_cast<double>(frame.centre), unit)
      : spec_.loss == Loss::poisson
          ? static_cast<double>(frame.scale + frame.y_exponent - 31) * 0x1.62e42fefa39efp-1
          : 0.0;
  const int step = (squared ? unit + frame.scale : 0) - static_cast<int>(spec_.step_bits);
  return {frame.base, step, offset};
}

ScoreScale Model::scale() {
  return settled([&] { return scale_of(content_.frame); }, 1);
}

std::vector<std::uint8_t> Model::trees_bytes(std::size_t n_threads) {
  return settled([&] { return write_trees(content_.trees, content_.frame.base, spec_); },
                 n_threads);
}

TreeView Model::tree(std::size_t index) {
  return settled(
      [&] {
        if (index >= content_.trees.size()) {
          throw std::invalid_argument("there is no tree of that number");
        }
        const Tree& tree = content_.trees[index];
        TreeView view;
        const auto visit = [&](auto&& self, int node) -> std::int64_t {
          const std::size_t place = view.kind.size();
          const bool is_leaf = node < 0;
          const Split split = is_leaf ? Split{} : tree.splits[static_cast<std::size_t>(node)];
          view.kind.push_back(is_leaf ? 0 : split.categorical ? 2 : 1);
          view.attribute.push_back(is_leaf ? -1 : std::int64_t{split.column});
          view.threshold.push_back(is_leaf ? std::numeric_limits<float>::quiet_NaN()
                                           : split.threshold);
          view.missing_left.push_back(split.missing_left ? 1 : 0);
          view.left.push_back(-1);
          view.right.push_back(-1);
          view.hessian.push_back(0.0);
          view.value.push_back(0.0);
          if (is_leaf) {
            const Leaf& leaf = tree.leaves[static_cast<std::size_t>(-1 - node)];
            view.hessian[place] = std::ldexp(static_cast<double>(leaf.h), -kGradientBits);
            view.value[place] = std::ldexp(leaf.step, -static_cast<int>(spec_.step_bits));
          } else {
            view.left[place] = self(self, split.left);
            view.right[place] = self(self, split.right);
            view.hessian[place] = view.hessian[static_cast<std::size_t>(view.left[place])] +
                                  view.hessian[static_cast<std::size_t>(view.right[place])];
          }
          return static_cast<std::int64_t>(place);
        };
        visit(visit, tree.splits.empty() ? -1 : 0);
        return view;
      },
      1);
}

std::vector<double> Model::importances() {
  return settled(
      [&] {
        std::vector<double> gains(spec_.n_columns, 0.0);
        for (const Tree& tree : content_.trees) {
          add_gains(tree, tree.splits.empty() ? -1 : 0, static_cast<double>(spec_.l2), gains);
        }
        const double total = std::accumulate(gains.begin(), gains.end(), 0.0);
        for (double& gain : gains) {
          gain /= total > 0.0 ? total : 1.0;
        }
        return gains;
      },
      1);
}

std::vector<std::int64_t> Model::class_counts() const {
  const auto lock = gate_.reading();
  return content_.table.class_weights();
}

RowBlock Model::copy_rows(std::span<const Slot> slots) const {
  const auto lock = gate_.reading();
  return content_.table.copy_held(slots);
}

RowsView Model::rows(std::span<const std::uint32_t> order) const {
  const auto lock = gate_.reading();
  std::vector<std::uint32_t> rank(content_.table.n_classes(), 0);
  for (std::size_t place = 0; place < order.size(); ++place) {
    if (order[place] >= rank.size()) {
      throw std::invalid_argument("the order names a class that is not there");
    }
    rank[order[place]] = static_cast<std::uint32_t>(place);
  }
  return view_rows(content_.table, content_.ids, rank);
}

RowsView Model::ids() const {
  const auto lock = gate_.reading();
  return view_ids(content_.table, content_.ids);
}

}  // namespace letheon::boosting
