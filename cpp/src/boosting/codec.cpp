#include "letheon/boosting/codec.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "letheon/boosting/values.hpp"
#include "letheon/common/framing.hpp"

namespace letheon::boosting {

namespace {

constexpr std::array<std::uint8_t, 4> kMagic{'L', 'T', 'R', 'B'};
constexpr std::uint8_t kThreshold = 1;
constexpr std::uint8_t kCategory = 2;
constexpr std::uint8_t kMissingLeft = 4;
// Of a row, besides its values: target, weight, id, slots, and columns on their way.
constexpr std::uint64_t kRowBytes = 256;

[[noreturn]] void refuse(const std::string& what) { refuse_bytes("trees", what); }

Split read_split(ByteReader& reader, std::uint8_t tag, const Spec& spec) {
  Split split;
  const int kind = tag & ~kMissingLeft;
  split.column = reader.get<std::uint32_t>();
  split.threshold = std::bit_cast<float>(reader.get<std::uint32_t>());
  split.categorical = kind == kCategory;
  split.missing_left = (tag & kMissingLeft) != 0;
  if (kind != kThreshold && kind != kCategory) {
    refuse("a node is of no known kind");
  }
  if (split.column >= spec.n_columns || !std::isfinite(split.threshold) ||
      split.categorical != spec.categorical(split.column)) {
    refuse("a split contradicts the settings");
  }
  return split;
}

Tree read_tree(ByteReader& reader, const Spec& spec) {
  Tree tree;
  tree.leaves.clear();
  std::vector<bool> is_leaf;
  // A tree ends when it has one leaf more than splits.
  while (tree.leaves.size() <= tree.splits.size()) {
    const auto tag = reader.get<std::uint8_t>();
    is_leaf.push_back(tag == 0);
    if (tag != 0) {
      tree.splits.push_back(read_split(reader, tag, spec));
    } else {
      Leaf leaf;
      leaf.g = reader.get<std::int64_t>();
      leaf.h = reader.get<std::int64_t>();
      leaf.step = reader.get<std::int32_t>();
      tree.leaves.push_back(leaf);
    }
    if (tree.splits.size() >= spec.max_leaves) {
      refuse("a tree has too many leaves");
    }
  }
  if (!link_splits(tree.splits, is_leaf, spec.max_leaves)) {
    refuse("the nodes make no tree");
  }
  return tree;
}

void write_node(std::vector<std::uint8_t>& out, const Tree& tree, int node) {
  if (node < 0) {
    const Leaf& leaf = tree.leaves[static_cast<std::size_t>(-1 - node)];
    put(out, std::uint8_t{0});
    put(out, leaf.g);
    put(out, leaf.h);
    put(out, leaf.step);
    return;
  }
  const Split& split = tree.splits[static_cast<std::size_t>(node)];
  put(out, static_cast<std::uint8_t>((split.categorical ? kCategory : kThreshold) |
                                     (split.missing_left ? kMissingLeft : 0)));
  put(out, split.column);
  put(out, std::bit_cast<std::uint32_t>(split.threshold));
  write_node(out, tree, split.left);
  write_node(out, tree, split.right);
}

}  // namespace

std::vector<std::uint8_t> write_trees(std::span<const Tree> trees,
                                      std::span<const std::int32_t> base, const Spec& spec) {
  std::vector<std::uint8_t> out(kMagic.begin(), kMagic.end());
  put(out, kTreeFormat);
  put(out, spec.n_rounds);
  put(out, static_cast<std::uint32_t>(base.size()));
  for (const std::int32_t start : base) {
    put(out, start);
  }
  for (const Tree& tree : trees) {
    write_node(out, tree, tree.splits.empty() ? -1 : 0);
  }
  return out;
}

std::vector<Tree> read_trees(Bytes bytes, std::uint32_t n_outputs, const Spec& spec) {
  ByteReader reader(bytes);
  if (!std::ranges::equal(reader.take(kMagic.size()), kMagic)) {
    refuse("they do not begin as boosted trees do");
  }
  const auto version = reader.get<std::uint32_t>();
  if (version != kTreeFormat) {
    throw std::invalid_argument("the trees have format " + std::to_string(version) +
                                "; this version reads format " + std::to_string(kTreeFormat));
  }
  if (reader.get<std::uint32_t>() != spec.n_rounds) {
    refuse("the number of rounds is not that of the settings");
  }
  if (reader.get<std::uint32_t>() != n_outputs) {
    refuse("the number of outputs is not that of the rows");
  }
  static_cast<void>(reader.take(std::uint64_t{4} * n_outputs));
  std::vector<Tree> trees;
  for (std::uint64_t t = 0; t < std::uint64_t{spec.n_rounds} * n_outputs; ++t) {
    trees.push_back(read_tree(reader, spec));
  }
  reader.require_end();
  return trees;
}

RestoreCost restore_cost(const ModelSize& size) noexcept {
  const std::uint64_t n_outputs = size.n_classes > 2 ? size.n_classes : 1;
  const std::uint64_t n_trees = size.n_rounds * n_outputs;
  const std::uint64_t tree_bytes =
      3 * (sizeof(Tree) + kMostLeaves * (2 * sizeof(Split) + sizeof(Leaf))) + 512;
  const std::uint64_t state_bytes =
      sizeof(State) * n_outputs * (size.n_rounds / kCheckRounds + 3);
  RestoreCost cost;
  cost.bytes = size.n_columns * (sizeof(Column) + 64 + 16 * std::min<std::uint64_t>(
                                                            size.n_rows, Column::kMaxCodes)) +
               size.n_rows * (8 * size.n_columns + kRowBytes + 2 * n_trees + state_bytes) +
               n_trees * tree_bytes + 2 * size.text_bytes + (1 << 20);
  cost.steps = size.n_rows * (n_trees + size.n_columns) + n_trees * kMostLeaves;
  return cost;
}

}  // namespace letheon::boosting
