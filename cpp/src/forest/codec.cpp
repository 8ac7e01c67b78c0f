#include "letheon/forest/codec.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "letheon/common/framing.hpp"

namespace letheon::forest {

namespace {

constexpr std::array<std::uint8_t, 4> kMagic{'L', 'T', 'R', 'F'};
constexpr std::uint8_t kKindMask = 3;
constexpr std::uint8_t kSawMissing = 4;
constexpr std::uint8_t kMissingLeft = 8;
// Of a row, besides its values: target, weight, id, slots, and sixteen columns on their way.
constexpr std::uint64_t kRowBytes = 256;

[[noreturn]] void refuse(const std::string& what) { refuse_bytes("trees", what); }

std::uint8_t tag_of(const Tree& tree, const Node& node) {
  if (!node.is_split()) {
    return 0;
  }
  std::uint8_t tag = node.kind == Kind::greedy ? 1 : 2;
  tag |= node.saw_missing ? kSawMissing : std::uint8_t{0};
  tag |= tree.sends_missing_left(node) ? kMissingLeft : std::uint8_t{0};
  return tag;
}

void put_sums(std::vector<std::uint8_t>& out, Lanes lanes, std::span<const std::uint32_t> order,
              bool regression) {
  if (regression) {
    put(out, static_cast<std::uint32_t>(lanes[0]));
    put(out, lanes[1]);
    return;
  }
  for (const std::uint32_t code : order) {
    put(out, static_cast<std::uint32_t>(lanes[code]));
  }
}

void check_sums(ByteReader& reader, const Tree& tree, NodeId id) {
  const Lanes lanes = tree.totals(id);
  bool same = true;
  if (tree.is_regression()) {
    same = reader.get<std::uint32_t>() == static_cast<std::uint64_t>(lanes[0]);
    same = reader.get<std::int64_t>() == lanes[1] && same;
  } else {
    for (const std::int64_t lane : lanes) {
      same = reader.get<std::uint32_t>() == static_cast<std::uint64_t>(lane) && same;
    }
  }
  if (!same) {
    refuse("a node's sums are not those of its rows");
  }
}

// Sends the rows of a node to two new children, as its verdict says.
void route(const Table& table, Tree& tree, NodeId id, const Verdict& verdict) {
  const std::span<Slot> rows = tree.rows_of(id);
  const Column& column = table.column(verdict.attribute);
  bool saw_missing = false;
  for (const Slot slot : rows) {
    saw_missing = saw_missing || std::isnan(column.at(slot));
  }
  if (saw_missing != verdict.saw_missing) {
    refuse("a node is wrong about missing values");
  }
  const auto is_chosen = [&](Slot slot) { return column.at(slot) == verdict.threshold; };
  if (verdict.is_category && std::ranges::none_of(rows, is_chosen)) {
    refuse("a node asks for a category that none of its rows has");
  }
  const auto right = std::ranges::stable_partition(
      rows, [&](Slot slot) { return verdict.sends_left(column.at(slot)); });
  const auto n_right = static_cast<std::uint32_t>(right.size());
  const auto n_left = static_cast<std::uint32_t>(rows.size()) - n_right;
  if (n_left == 0 || n_right == 0) {
    refuse("a split has an empty side");
  }
  tree.split(id);
  const NodeId left = tree.node(id).left;
  tree.node(left).begin = tree.node(id).begin;
  tree.node(left).size = n_left;
  tree.node(left + 1).begin = tree.node(id).begin + n_left;
  tree.node(left + 1).size = n_right;
  tree.count_rows(left, table);
  tree.count_rows(left + 1, table);
}

// The bytes of each tree, of at most so many.
std::vector<Bytes> split_frame(Bytes bytes, std::uint32_t n_lanes, std::size_t most_trees) {
  ByteReader reader(bytes);
  if (!std::ranges::equal(reader.take(kMagic.size()), kMagic)) {
    refuse("they do not begin as trees do");
  }
  const auto version = reader.get<std::uint32_t>();
  if (version != kTreeFormat) {
    throw std::invalid_argument("the trees have format " + std::to_string(version) +
                                "; this version reads format " + std::to_string(kTreeFormat));
  }
  const auto n_trees = reader.get<std::uint32_t>();
  if (n_trees > most_trees) {
    refuse("there are more trees than in the settings");
  }
  if (reader.get<std::uint32_t>() != n_lanes) {
    refuse("the number of classes is not that of the rows");
  }
  std::vector<Bytes> parts;
  for (std::size_t t = 0; t < n_trees; ++t) {
    parts.push_back(reader.take(reader.get<std::uint64_t>()));
  }
  reader.require_end();
  return parts;
}

struct TreeShape {
  std::uint64_t n_nodes = 0;
  std::uint64_t depth = 0;
};

// Counts the nodes of a tree in its bytes; looks at no row.
TreeShape shape_of(Bytes bytes, std::uint64_t n_lanes, bool regression) {
  ByteReader reader(bytes);
  TreeShape shape;
  std::vector<std::uint32_t> depths{0};
  while (!depths.empty()) {
    const std::uint32_t depth = depths.back();
    depths.pop_back();
    const bool is_split = (reader.get<std::uint8_t>() & kKindMask) != 0;
    static_cast<void>(reader.take((is_split ? 8 : 0) + (regression ? 12 : 4 * n_lanes)));
    ++shape.n_nodes;
    shape.depth = std::max<std::uint64_t>(shape.depth, depth);
    if (is_split) {
      depths.insert(depths.end(), 2, depth + 1);
    }
  }
  reader.require_end();
  return shape;
}

}  // namespace

std::vector<std::uint8_t> write_trees(std::span<const Tree> trees,
                                      std::span<const std::uint32_t> order, const Spec& spec) {
  std::vector<std::uint8_t> out(kMagic.begin(), kMagic.end());
  const bool regression = spec.is_regression();
  const auto n_lanes = regression ? 2u : static_cast<std::uint32_t>(order.size());
  put(out, kTreeFormat);
  put(out, static_cast<std::uint32_t>(trees.size()));
  put(out, n_lanes);
  for (const Tree& tree : trees) {
    if (std::ranges::any_of(order, [&](auto code) { return code >= tree.n_lanes(); })) {
      throw std::invalid_argument("the order names a class that is not there");
    }
    const std::size_t length_at = out.size();
    put(out, std::uint64_t{0});
    tree.walk(0, [&](NodeId id, std::uint64_t, std::uint32_t) {
      const Node& node = tree.node(id);
      put(out, tag_of(tree, node));
      if (node.is_split()) {
        put(out, node.attribute);
        put(out, std::bit_cast<std::uint32_t>(node.threshold));
      }
      put_sums(out, tree.totals(id), order, regression);
      return true;
    });
    const std::uint64_t length = out.size() - length_at - sizeof(std::uint64_t);
    for (std::size_t k = 0; k < sizeof(length); ++k) {
      out[length_at + k] = static_cast<std::uint8_t>(length >> (8 * k));
    }
  }
  return out;
}

std::vector<Bytes> split_trees(Bytes bytes, std::uint32_t n_classes, const Spec& spec) {
  return split_frame(bytes, spec.is_regression() ? 2u : n_classes, spec.tree_keys.size());
}

RestoreCost restore_cost(Bytes bytes, const ForestSize& size) {
  const std::uint64_t n_lanes = size.regression ? 2u : size.n_classes;
  const auto parts = split_frame(bytes, static_cast<std::uint32_t>(n_lanes), size.n_trees);
  // A vector of nodes that grows holds up to three times what is in it for a moment.
  const std::uint64_t node_bytes = 3 * (sizeof(Node) + 8 * n_lanes + sizeof(Wide));
  const std::uint64_t column_bytes =
      sizeof(Column) + 64 + 16 * std::min<std::uint64_t>(size.n_rows, Column::kMaxCodes);
  RestoreCost cost;
  cost.bytes = size.n_columns * column_bytes + size.n_rows * (8 * size.n_columns + kRowBytes) +
               2 * size.text_bytes;
  for (const Bytes part : parts) {
    const TreeShape shape = shape_of(part, n_lanes, size.regression);
    cost.bytes += sizeof(Tree) + 64 + sizeof(Slot) * size.n_rows + shape.n_nodes * node_bytes;
    cost.steps += shape.n_nodes + shape.depth * size.n_rows;
  }
  return cost;
}

void read_tree(Bytes bytes, const Table& table, const Spec& spec, Tree& tree) {
  struct Step {
    NodeId id;
    std::uint32_t depth;
  };
  ByteReader reader(bytes);
  std::vector<Step> stack{{Tree::kRoot, 0}};
  while (!stack.empty()) {
    const auto [id, depth] = stack.back();
    stack.pop_back();
    const auto tag = reader.get<std::uint8_t>();
    const int kind = tag & kKindMask;
    if (kind == kKindMask || tag >= 16 || (kind == 0 && tag != 0)) {
      refuse("a node is of no known kind");
    }
    Verdict verdict;
    if (kind != 0) {
      verdict = {Verdict::Kind::split, reader.get<std::uint32_t>(),
                 std::bit_cast<float>(reader.get<std::uint32_t>()), (tag & kSawMissing) != 0,
                 (tag & kMissingLeft) != 0};
      if (verdict.attribute >= spec.n_columns || !std::isfinite(verdict.threshold) ||
          depth >= spec.max_depth || (kind == 2) != (depth < spec.random_depth)) {
        refuse("a split contradicts the settings");
      }
      verdict.is_category = spec.is_category(verdict.attribute);
    }
    check_sums(reader, tree, id);
    if (kind == 0) {
      // Whether it was final is not written; taking it for blocked only costs a look later.
      tree.set_kind(id, Kind::blocked);
      continue;
    }
    route(table, tree, id, verdict);
    Node& node = tree.node(id);
    tree.set_kind(id, kind == 1 ? Kind::greedy : Kind::random);
    node.attribute = verdict.attribute;
    node.threshold = verdict.threshold;
    node.is_category = verdict.is_category;
    node.saw_missing = verdict.saw_missing;
    node.missing_left = verdict.saw_missing && verdict.missing_left;
    if (tree.sends_missing_left(node) != verdict.missing_left) {
      refuse("a node sends missing values to the wrong side");
    }
    const NodeId left = node.left;
    stack.push_back({left + 1, depth + 1});
    stack.push_back({left, depth + 1});
  }
  reader.require_end();
}

}  // namespace letheon::forest
