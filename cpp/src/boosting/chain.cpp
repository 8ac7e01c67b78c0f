#include "letheon/boosting/chain.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>

#include "letheon/boosting/bins.hpp"
#include "letheon/boosting/loss.hpp"
#include "letheon/common/clones.hpp"

namespace letheon::boosting {

namespace {

__extension__ using Wide = __int128;

// Sums of g and h in one number, (g << 32) + h; h >= 0, and both below 2^31 in size.
using Pair = std::int64_t;

constexpr std::int32_t g_of(Pair pair) noexcept { return static_cast<std::int32_t>(pair >> 32); }
constexpr std::int32_t h_of(Pair pair) noexcept { return static_cast<std::int32_t>(pair); }

constexpr std::size_t kLanes = 8;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

// A node's best split: the first of those with the largest gain.
struct Best {
  float score = 0.0f;  // (g_left^2 / (h_left + l2)) + the same of the right side
  float gain = 0.0f;   // score - the same of the node; 0: no split
  std::uint32_t column = 0;
  std::uint32_t bin = 0;
  bool missing_left = true;
};

struct NodeRule {
  Pair total;
  float l2;
  float least_h;  // of each side
};

struct BestPlace {
  float score;
  std::size_t place;
};

// g and h of eight sides; the halves of the pairs depend on the byte order.
LETHEON_INLINE void load_sides(const Pair* sides, Floats& g, Floats& h) noexcept {
  constexpr int kHigh = std::endian::native == std::endian::little ? 1 : 0;
  Ints first;
  Ints second;
  std::memcpy(&first, sides, sizeof(first));
  std::memcpy(&second, sides + kLanes / 2, sizeof(second));
  constexpr int kLow = 1 - kHigh;
  g = __builtin_convertvector(
      __builtin_shufflevector(first, second, kHigh, kHigh + 2, kHigh + 8, kHigh + 10, kHigh + 4,
                              kHigh + 6, kHigh + 12, kHigh + 14),
      Floats);
  h = __builtin_convertvector(
      __builtin_shufflevector(first, second, kLow, kLow + 2, kLow + 8, kLow + 10, kLow + 4,
                              kLow + 6, kLow + 12, kLow + 14),
      Floats);
}

// The place of each lane of `load_sides`, which keeps the halves of registers apart.
constexpr std::array<std::size_t, kLanes> kLanePlaces{0, 1, 4, 5, 2, 3, 6, 7};

// The first of n left sides that has the largest score, in single precision; a score of -1 if
// there is none. There is room for kLanes more.
LETHEON_VECTOR
BestPlace best_side(Pair* sides, std::size_t n, const NodeRule& rule) noexcept {
  std::fill_n(sides + n, kLanes, rule.total);  // nothing is right: never a candidate
  const auto total_g = static_cast<float>(g_of(rule.total));
  const auto total_h = static_cast<float>(h_of(rule.total));
  Floats best = Floats{} - 1.0f;
  Ints where{};
  for (std::size_t i = 0; i < n; i += kLanes) {
    Floats gl;
    Floats hl;
    load_sides(sides + i, gl, hl);
    const Floats gr = total_g - gl;
    const Floats hr = total_h - hl;
    const Floats below_left = hl + rule.l2;
    const Floats below_right = hr + rule.l2;
    // gl^2 / below_left + gr^2 / below_right by one division; the terms are below 2^92.
    const Floats score =
        (gl * gl * below_right + gr * gr * below_left) / (below_left * below_right);
    const Ints better = (score > best) & (hl >= rule.least_h) & (hr >= rule.least_h);
    best = better ? score : best;
    where = better ? Ints{} + static_cast<std::int32_t>(i) : where;
  }
  BestPlace result{-1.0f, 0};
  for (std::size_t k = 0; k < kLanes; ++k) {
    const std::size_t place = static_cast<std::size_t>(where[k]) + kLanePlaces[k];
    if (best[k] > result.score || (best[k] == result.score && place < result.place)) {
      result = {best[k], place};
    }
  }
  return result;
}

// The splits that a node may have, of many columns at once: most columns of indicators have one.
class Candidates {
 public:
  // Adds the splits of a column, given its part of the histogram of the node.
  void add(const Pair* bins, const BinnedColumn& column, std::uint32_t number,
           const NodeRule& rule, Best& best) {
    if (n_ + 2 * column.n_bins > kRoom) {
      choose(rule, best);
    }
    const Pair missing = bins[0];
    // Missing values right, then left; the side does not matter if there are none.
    for (int missing_left = missing == 0 ? 1 : 0; missing_left < 2; ++missing_left) {
      const bool side = missing == 0 ? !column.categorical : missing_left == 1;
      parts_.push_back({static_cast<std::uint32_t>(n_), number, side});
      Pair left = missing_left == 1 ? missing : 0;
      // Not a candidate: all other categories together, and the last bin, unless only missing
      // values are on the right. Empty bins repeat a side, and the first one counts.
      const std::size_t last = column.n_bins - (column.categorical || missing_left == 1 ? 2 : 1);
      Pair* const sides = sides_.data() + n_;
      if (column.categorical) {
        for (std::size_t b = 1; b <= last; ++b) {
          sides[b - 1] = left + bins[b];
        }
      } else {
        for (std::size_t b = 1; b <= last; ++b) {
          left += bins[b];
          sides[b - 1] = left;
        }
      }
      n_ += last;
    }
  }

  // Searches what was added; `best` changes if a split has a higher score.
  void choose(const NodeRule& rule, Best& best) {
    const BestPlace winner = best_side(sides_.data(), n_, rule);
    if (winner.score > best.score) {
      const Part& part = *std::prev(std::ranges::upper_bound(
          parts_, static_cast<std::uint32_t>(winner.place), {}, &Part::begin));
      best.score = winner.score;
      best.column = part.column;
      best.bin = static_cast<std::uint32_t>(winner.place) - part.begin + 1;
      best.missing_left = part.missing_left;
    }
    n_ = 0;
    parts_.clear();
  }

 private:
  struct Part {
    std::uint32_t begin;  // number of its first candidate
    std::uint32_t column;
    bool missing_left;
  };
  static constexpr std::size_t kRoom = 1024;

  std::size_t n_ = 0;
  std::vector<Part> parts_;
  alignas(32) std::array<Pair, kRoom + kLanes> sides_;
};

LETHEON_VECTOR
void subtract(Pair* from, const Pair* what, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    from[i] -= what[i];
  }
}

struct Node {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint64_t weight = 0;
  Pair total = 0;
  std::int32_t histogram = -1;  // number of its histogram, if it is kept
  std::int32_t left = -1;       // child; the right one follows
  Best best;
};

// Grows the trees of one chain; keeps its buffers from tree to tree.
class TreeGrower {
 public:
  TreeGrower(const Spec& spec, const BinnedRows& rows)
      : spec_(spec), rows_(rows), order_(rows.n_rows), moved_(rows.n_rows),
        scratch_(rows.histogram_size) {}

  // Grows a tree on these sums of the rows, in units of 2^(shift - 15).
  Tree grow(std::span<const Pair> pairs, int shift, std::uint64_t tree_key);

  // Calls visit(rows of the leaf, sum of their pairs) for every leaf of the last tree.
  template <typename Visit>
  void visit_leaves(Visit visit) const {
    for (const Node& node : nodes_) {
      if (node.left < 0) {
        visit(std::span(order_).subspan(node.begin, node.end - node.begin), node.total);
      }
    }
  }

 private:
  void choose_columns(std::uint64_t tree_key);
  void build(const Node& node, Pair* histogram) const noexcept;
  void search(Node& node, const Pair* histogram) noexcept;
  [[nodiscard]] bool can_split(const Node& node) const noexcept {
    return node.end - node.begin >= 2 && node.weight >= 2 * std::uint64_t{spec_.min_samples_leaf};
  }
  [[nodiscard]] bool is_large(const Node& node) const noexcept {
    const std::size_t n_entries = rows_.begins.back() / std::max<std::size_t>(rows_.n_rows, 1) + 1;
    return (node.end - node.begin) * n_entries > rows_.histogram_size;
  }
  void split(std::size_t number);
  void search_children(std::size_t parent);
  [[nodiscard]] std::int32_t take_histogram();
  [[nodiscard]] Tree to_tree() const;

  const Spec& spec_;
  const BinnedRows& rows_;
  std::span<const Pair> pairs_;
  float l2_ = 0.0f;
  std::vector<std::uint32_t> columns_;  // of this tree, ascending
  std::vector<std::uint32_t> order_;    // rows, those of a node together
  std::vector<std::uint32_t> moved_;
  std::vector<Node> nodes_;
  std::vector<Pair> scratch_;
  Candidates candidates_;
  std::vector<std::vector<Pair>> histograms_;
  std::vector<std::int32_t> free_;
};

void TreeGrower::choose_columns(std::uint64_t tree_key) {
  columns_.resize(spec_.n_columns);
  std::iota(columns_.begin(), columns_.end(), 0u);
  if (spec_.tree_columns < spec_.n_columns) {
    const auto middle = columns_.begin() + spec_.tree_columns;
    std::ranges::nth_element(columns_, middle, {},
                             [&](std::uint32_t j) { return mix64(tree_key, j); });
    columns_.resize(spec_.tree_columns);
    std::ranges::sort(columns_);
  }
  // A column of one bin splits nothing.
  std::erase_if(columns_, [&](std::uint32_t j) {
    return rows_.columns[j].n_bins < 2;
  });
}

void TreeGrower::build(const Node& node, Pair* histogram) const noexcept {
  std::fill_n(histogram, rows_.histogram_size, Pair{0});
  for (std::uint32_t i = node.begin; i < node.end; ++i) {
    const std::uint32_t row = order_[i];
    const Pair pair = pairs_[row];
    const std::uint32_t end = rows_.begins[row + 1];
    for (std::uint32_t e = rows_.begins[row]; e < end; ++e) {
      histogram[rows_.entries[e]] += pair;
    }
  }
  for (const std::uint32_t j : columns_) {
    const BinnedColumn& column = rows_.columns[j];
    if (column.usual != BinnedColumn::kNone) {
      Pair* const bins = histogram + column.first;
      bins[column.usual] = node.total - std::accumulate(bins, bins + column.n_bins, Pair{0});
    }
  }
}

void TreeGrower::search(Node& node, const Pair* histogram) noexcept {
  const float least_h = static_cast<float>(spec_.min_samples_leaf) *
                        (static_cast<float>(h_of(node.total)) / static_cast<float>(node.weight));
  const NodeRule rule{node.total, l2_, std::max(least_h, 1.0f)};  // no side is empty
  for (const std::uint32_t j : columns_) {
    const BinnedColumn& column = rows_.columns[j];
    const Pair* const bins = histogram + column.first;
    if (column.usual != BinnedColumn::kNone && bins[column.usual] == node.total) {
      continue;  // all rows are in one bin
    }
    candidates_.add(bins, column, j, rule, node.best);
  }
  candidates_.choose(rule, node.best);
  const auto g = static_cast<float>(g_of(node.total));
  node.best.gain = node.best.score - g * g / (static_cast<float>(h_of(node.total)) + l2_);
}

std::int32_t TreeGrower::take_histogram() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::int32_t>(histograms_.size()));
    histograms_.emplace_back(rows_.histogram_size);
  }
  const std::int32_t number = free_.back();
  free_.pop_back();
  return number;
}

void TreeGrower::split(std::size_t number) {
  nodes_[number].left = static_cast<std::int32_t>(nodes_.size());
  const Node parent = nodes_[number];
  const BinnedColumn& column = rows_.columns[parent.best.column];
  std::array<std::uint8_t, 256> goes_left{};
  goes_left[0] = parent.best.missing_left ? 1 : 0;
  for (std::uint32_t bin = 1; bin < column.n_bins; ++bin) {
    const bool inside = column.categorical ? bin == parent.best.bin : bin <= parent.best.bin;
    goes_left[bin] = inside ? 1 : 0;
  }
  const std::uint8_t* const bins = rows_.bins(parent.best.column);
  std::uint32_t* const order = order_.data();
  std::uint32_t* const moved = moved_.data();
  std::uint32_t middle = parent.begin;
  std::uint32_t n_right = 0;
  for (std::uint32_t i = parent.begin; i < parent.end; ++i) {
    const std::uint32_t row = order[i];
    const std::uint32_t is_left = goes_left[bins[row]];
    order[middle] = row;
    moved[n_right] = row;
    middle += is_left;
    n_right += 1 - is_left;
  }
  std::copy_n(moved, n_right, order + middle);
  Node left;
  Node right;
  left.begin = parent.begin;
  left.end = right.begin = middle;
  right.end = parent.end;
  const bool left_smaller = middle - parent.begin <= n_right;
  Node& small = left_smaller ? left : right;
  Node& large = left_smaller ? right : left;
  for (std::uint32_t i = small.begin; i < small.end; ++i) {
    small.total += pairs_[order[i]];
    small.weight += rows_.weights[order[i]];
  }
  large.total = parent.total - small.total;
  large.weight = parent.weight - small.weight;
  nodes_.push_back(left);
  nodes_.push_back(right);
}

void TreeGrower::search_children(std::size_t parent) {
  const auto first = static_cast<std::size_t>(nodes_[parent].left);
  const bool left_smaller = nodes_[first].end - nodes_[first].begin <=
                            nodes_[first + 1].end - nodes_[first + 1].begin;
  Node& small = nodes_[first + (left_smaller ? 0 : 1)];
  Node& large = nodes_[first + (left_smaller ? 1 : 0)];
  const std::int32_t kept = nodes_[parent].histogram;
  if (can_split(large) && kept >= 0 && is_large(large)) {
    small.histogram = take_histogram();
    Pair* const of_small = histograms_[static_cast<std::size_t>(small.histogram)].data();
    Pair* const of_large = histograms_[static_cast<std::size_t>(kept)].data();
    build(small, of_small);
    subtract(of_large, of_small, rows_.histogram_size);
    large.histogram = kept;
    search(large, of_large);
    if (can_split(small)) {
      search(small, of_small);
    }
    if (!can_split(small) || !is_large(small)) {
      free_.push_back(small.histogram);
      small.histogram = -1;
    }
    return;
  }
  if (kept >= 0) {
    free_.push_back(kept);
  }
  for (Node* child : {&small, &large}) {
    if (can_split(*child)) {
      build(*child, scratch_.data());
      search(*child, scratch_.data());
    }
  }
}

Tree TreeGrower::grow(std::span<const Pair> pairs, int shift, std::uint64_t tree_key) {
  pairs_ = pairs;
  l2_ = static_cast<float>(spec_.l2 >> shift);
  choose_columns(tree_key);
  std::iota(order_.begin(), order_.end(), 0u);
  nodes_.assign(1, {});
  free_.resize(histograms_.size());
  std::iota(free_.begin(), free_.end(), 0);
  Node& root = nodes_[0];
  root.end = static_cast<std::uint32_t>(rows_.n_rows);
  root.total = std::accumulate(pairs.begin(), pairs.end(), Pair{0});
  root.weight = std::accumulate(rows_.weights.begin(), rows_.weights.end(), std::uint64_t{0});
  if (can_split(root)) {
    root.histogram = take_histogram();
    Pair* const histogram = histograms_[static_cast<std::size_t>(root.histogram)].data();
    build(root, histogram);
    search(root, histogram);
  }
  for (std::size_t n_leaves = 1; n_leaves < spec_.max_leaves; ++n_leaves) {
    std::size_t chosen = nodes_.size();
    float gain = 0.0f;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].left < 0 && nodes_[i].best.gain > gain) {
        chosen = i;
        gain = nodes_[i].best.gain;
      }
    }
    if (chosen == nodes_.size()) {
      break;
    }
    split(chosen);
    if (n_leaves + 1 < spec_.max_leaves) {
      search_children(chosen);
    }
  }
  return to_tree();
}

Tree TreeGrower::to_tree() const {
  Tree tree;
  std::vector<bool> is_leaf;
  std::vector<std::size_t> todo{0};
  while (!todo.empty()) {
    const Node& node = nodes_[todo.back()];
    todo.pop_back();
    is_leaf.push_back(node.left < 0);
    if (node.left >= 0) {
      const BinnedColumn& column = rows_.columns[node.best.column];
      tree.splits.push_back({.column = node.best.column,
                             .threshold = column.edges[node.best.bin - 1],
                             .categorical = column.categorical,
                             .missing_left = node.best.missing_left});
      todo.push_back(static_cast<std::size_t>(node.left) + 1);
      todo.push_back(static_cast<std::size_t>(node.left));
    }
  }
  static_cast<void>(link_splits(tree.splits, is_leaf, kMostLeaves));
  tree.leaves.resize(tree.splits.size() + 1);
  return tree;
}

// The scores of a chain's rows, and the gradients that they make.
class Pilot {
 public:
  Pilot(const Spec& spec, const Table& table, const Targets& targets, std::span<const Slot> rows,
        std::span<const std::uint32_t> weights);

  // Computes the gradients of all outputs at the scores as they are.
  void compute_gradients() noexcept;
  // The gradients of an output in pairs whose sums cannot overflow; returns their shift.
  int pack(std::size_t output, std::vector<Pair>& pairs) const;
  void add_leaf(std::size_t output, std::span<const std::uint32_t> rows, Pair total,
                int shift) noexcept;

 private:
  [[nodiscard]] std::int32_t start(std::size_t output) const noexcept;

  const Spec& spec_;
  std::size_t n_outputs_;
  std::span<const std::uint32_t> weights_;
  std::vector<std::int32_t> targets_;
  std::vector<std::int32_t> scores_;  // n_outputs per row
  std::vector<Gradient> gradients_;
};

Pilot::Pilot(const Spec& spec, const Table& table, const Targets& targets,
             std::span<const Slot> rows, std::span<const std::uint32_t> weights)
    : spec_(spec), n_outputs_(targets.n_outputs), weights_(weights),
      scores_(rows.size() * targets.n_outputs), gradients_(rows.size() * targets.n_outputs) {
  for (const Slot slot : rows) {
    targets_.push_back(targets.of(table, slot));
  }
  for (std::size_t k = 0; k < n_outputs_; ++k) {
    const std::int32_t score = start(k);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      scores_[i * n_outputs_ + k] = score;
    }
  }
}

std::int32_t Pilot::start(std::size_t output) const noexcept {
  std::int64_t weight = 0;
  std::int64_t sum = 0;  // of the targets, or of the weights of the output's class
  const auto label = static_cast<std::int32_t>(n_outputs_ == 1 ? 1 : output);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    weight += weights_[i];
    sum += spec_.is_regression() ? std::int64_t{targets_[i]} * weights_[i]
                                 : (targets_[i] == label ? weights_[i] : 0);
  }
  if (weight == 0) {
    return 0;
  }
  const auto part = static_cast<std::uint64_t>(sum);
  switch (spec_.loss) {
    case Loss::squared:
      return static_cast<std::int32_t>(sum / weight >> (kGradientBits - kScoreBits));
    case Loss::poisson:
      return std::min(log_ratio(part >> kGradientBits, static_cast<std::uint64_t>(weight)),
                      kSteepest);
    default:
      return log_ratio(part, static_cast<std::uint64_t>(n_outputs_ == 1 ? weight - sum : weight));
  }
}

void Pilot::compute_gradients() noexcept {
  const LossTables& tables = loss_tables();
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    row_gradients(spec_.loss, tables, std::span(scores_).subspan(i * n_outputs_, n_outputs_),
                  targets_[i], gradients_.data() + i * n_outputs_);
  }
}

int Pilot::pack(std::size_t output, std::vector<Pair>& pairs) const {
  std::uint64_t sum_g = 0;
  std::uint64_t sum_h = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Gradient& gradient = gradients_[i * n_outputs_ + output];
    const auto size = static_cast<std::uint64_t>(std::abs(std::int64_t{gradient.g}));
    sum_g += size * weights_[i];
    sum_h += static_cast<std::uint64_t>(gradient.h) * weights_[i];
  }
  constexpr int kMostBits = 30;
  const int shift = std::max(0, static_cast<int>(std::bit_width(std::max(sum_g, sum_h))) - kMostBits);
  pairs.resize(targets_.size());
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Gradient& gradient = gradients_[i * n_outputs_ + output];
    const std::int64_t g = std::int64_t{gradient.g} * weights_[i] / (std::int64_t{1} << shift);
    const std::int64_t h = (std::int64_t{gradient.h} * weights_[i]) >> shift;
    pairs[i] = (g << 32) + h;
  }
  return shift;
}

void Pilot::add_leaf(std::size_t output, std::span<const std::uint32_t> rows, Pair total,
                     int shift) noexcept {
  const std::int64_t below = std::max<std::int64_t>(h_of(total) + (spec_.l2 >> shift), 1);
  const Wide above = -Wide{g_of(total)} * spec_.pilot_rate << kScoreBits;
  const Wide unit = Wide{below} * kRateUnit;
  const Wide rounded = (above >= 0 ? above + unit / 2 : above - unit / 2) / unit;
  const Wide most = spec_.largest_step() << (kScoreBits - spec_.step_bits);
  const auto value = static_cast<std::int32_t>(std::clamp<Wide>(rounded, -most, most));
  for (const std::uint32_t row : rows) {
    scores_[row * n_outputs_ + output] += value;
  }
}

}  // namespace

std::vector<Tree> grow_chain(const Spec& spec, std::size_t chain, const Table& table,
                             const Targets& targets, std::span<const Slot> rows,
                             Progress& progress) {
  const BinnedRows binned(spec, table, rows);
  Pilot pilot(spec, table, targets, rows, binned.weights);
  TreeGrower grower(spec, binned);
  std::vector<Tree> trees;
  std::vector<Pair> pairs;
  for (std::uint32_t round = spec.first_round(chain); round < spec.first_round(chain + 1);
       ++round) {
    pilot.compute_gradients();
    for (std::size_t k = 0; k < targets.n_outputs; ++k) {
      const int shift = pilot.pack(k, pairs);
      const std::uint64_t number = std::uint64_t{round} * targets.n_outputs + k;
      trees.push_back(grower.grow(pairs, shift, spec.draw(Use::column, number)));
      grower.visit_leaves([&](std::span<const std::uint32_t> leaf, Pair total) {
        pilot.add_leaf(k, leaf, total, shift);
      });
    }
    progress.add();
  }
  return trees;
}

}  // namespace letheon::boosting
