// What is asked of a forest: predictions, trees, rows.
#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>

#include "letheon/forest/codec.hpp"
#include "letheon/forest/forest.hpp"
#include "letheon/forest/grow.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::forest {

namespace {

constexpr std::size_t kRowsTogether = 256;

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

void Forest::require_width(const MatrixView& X) const {
  if (X.n_columns != spec_.n_columns) {
    throw std::invalid_argument("X has " + std::to_string(X.n_columns) +
                                " columns; this forest has " + std::to_string(spec_.n_columns));
  }
}

// False if nodes are missing that must be built first.
bool Forest::answer(const MatrixView& X, std::size_t n_threads, Answer& answer,
                    Missing& missing) const {
  require_width(X);
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
      find_leaves(trees[t], spec_, X, begin, end, leaves.data());
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
      out[k] = n_trees > 0 ? out[k] / static_cast<double>(n_trees)
                           : without_trees[k % answer.width];
    }
  });
  std::ranges::sort(missing);
  const auto repeated = std::ranges::unique(missing);
  missing.erase(repeated.begin(), repeated.end());
  return missing.empty();
}

Answer Forest::predict(const MatrixView& X, std::size_t n_threads) {
  Answer result;
  Missing missing;
  {
    const auto lock = reading();
    if (answer(X, n_threads, result, missing)) {
      return result;
    }
  }
  // Nodes are missing: build those that the rows reach, until none is missing. No thread can drop
  // any in between.
  const auto lock = changing();
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
    const auto lock = reading();
    if (std::ranges::all_of(content_.trees, [](const Tree& t) { return t.n_unbuilt() == 0; })) {
      return read();
    }
  }
  const auto lock = changing();
  settle_locked(n_threads);
  return read();
}

std::vector<std::int64_t> Forest::apply(const MatrixView& X, std::size_t n_threads) {
  require_finite(X, 0, X.n_rows);
  return settled(
      [&] {
        require_width(X);
        const auto& trees = content_.trees;
        std::vector<std::int64_t> numbers(X.n_rows * trees.size());
        run_tasks(trees.size(), n_threads, [&](std::size_t, std::size_t t) {
          std::vector<NodeId> leaves(X.n_rows);
          find_leaves(trees[t], spec_, X, 0, X.n_rows, leaves.data());
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
  const auto lock = reading();
  const Table& table = content_.table;
  return table.class_weights();
}

RowsView Forest::rows(std::span<const std::uint32_t> order) const {
  const auto lock = reading();
  std::vector<std::uint32_t> rank(content_.table.n_classes(), 0);
  for (std::size_t place = 0; place < order.size(); ++place) {
    if (order[place] >= rank.size()) {
      throw std::invalid_argument("the order names a class that is not there");
    }
    rank[order[place]] = static_cast<std::uint32_t>(place);
  }
  return view_rows(content_.table, content_.ids, rank);
}

RowBlock Forest::copy_rows(std::span<const Slot> slots) const {
  const auto lock = reading();
  return content_.table.copy_held(slots);
}

RowsView Forest::ids() const {
  const auto lock = reading();
  return view_ids(content_.table, content_.ids);
}

}  // namespace letheon::forest
