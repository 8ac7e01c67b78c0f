#include "letheon/forest/grow.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>

#include "letheon/forest/keys.hpp"

namespace letheon::forest {

void sort_rows(std::span<Slot> rows, std::vector<Slot>& scratch) {
  if (std::ranges::is_sorted(rows)) {
    return;
  }
  constexpr std::size_t kFew = 512;
  if (rows.size() < kFew) {
    std::ranges::sort(rows);
    return;
  }
  // Radix sort, eleven bits at a time, over the bits in use.
  constexpr int kBits = 11;
  scratch.resize(std::max(scratch.size(), rows.size()));
  const Slot greatest = *std::ranges::max_element(rows);
  std::span<Slot> from = rows;
  std::span<Slot> to(scratch.data(), rows.size());
  for (int shift = 0; shift < 32 && (greatest >> shift) != 0; shift += kBits) {
    std::array<std::uint32_t, (1u << kBits) + 1> begin{};
    for (const Slot row : from) {
      ++begin[((row >> shift) & ((1u << kBits) - 1)) + 1];
    }
    for (std::size_t k = 1; k < begin.size(); ++k) {
      begin[k] += begin[k - 1];
    }
    for (const Slot row : from) {
      to[begin[(row >> shift) & ((1u << kBits) - 1)]++] = row;
    }
    std::swap(from, to);
  }
  if (from.data() != rows.data()) {
    std::ranges::copy(from, rows.begin());
  }
}

Verdict random_split(std::uint64_t key, const Spec& spec, std::uint32_t attribute,
                     const Extremes& extremes) noexcept {
  const auto least = static_cast<double>(extremes.least);
  const auto greatest = static_cast<double>(extremes.greatest);
  const std::uint32_t name = spec.column_key(attribute);
  const double u = static_cast<double>(draw(key, Use::uniform, name) >> 11) * 0x1p-53;
  auto threshold = static_cast<float>(least + u * (greatest - least));
  const bool varies = extremes.least < extremes.greatest;
  const bool is_category = spec.is_category(attribute);
  if (!varies || is_category) {
    threshold = extremes.least;
  } else if (threshold >= extremes.greatest) {
    threshold = std::nextafterf(extremes.greatest, -std::numeric_limits<float>::infinity());
  }
  const bool odd = (draw(key, Use::missing, name) & 1) != 0;
  return {Verdict::Kind::split, attribute, canonical(threshold), extremes.missing_weight > 0,
          extremes.missing_weight > 0 && odd && varies, is_category};
}

bool Grower::is_final(const Sums& sums, std::uint32_t depth) const noexcept {
  return depth >= spec_.max_depth || sums.weight() < spec_.min_samples_split || sums.is_pure();
}

Judgement Grower::judge_random(std::uint64_t key, std::int64_t weight,
                               std::vector<std::uint64_t>* known_constant) {
  const auto pick = scanner_.random(key, known_constant);
  if (!pick) {
    return {};
  }
  const Verdict verdict = random_split(key, spec_, pick->attribute, pick->extremes);
  if (spec_.min_samples_leaf > 1) {
    const std::int64_t left = scanner_.weight_left(verdict);
    if (left < spec_.min_samples_leaf || weight - left < spec_.min_samples_leaf) {
      return {.kind = Kind::blocked};
    }
  }
  return {verdict, Kind::random, pick->extremes};
}

Judgement Grower::judge(Lanes totals, std::uint64_t key, std::uint32_t depth,
                        std::span<const Slot> rows,
                        std::vector<std::uint64_t>* known_constant) {
  const std::int64_t weight = table_.is_regression() ? totals[0] : class_weight(totals);
  scanner_.load(rows);
  if (depth < spec_.random_depth) {
    return judge_random(key, weight, known_constant);
  }
  scanner_.greedy(key, scanner_.keep(rows.size()), known_constant);
  if (scratch_.draft.lists.empty()) {
    return {};
  }
  Block::pack(scratch_.draft, weight, table_.is_regression(), scratch_.block);
  const Verdict verdict = Block(scratch_.block.data()).decide(totals, spec_);
  return {verdict, verdict.kind == Verdict::Kind::split ? Kind::greedy : Kind::blocked, {}};
}

void Grower::keep_cache(Node& node, const Judgement& judgement) const {
  node.cache.reset();
  if (node.size < spec_.cache_rows) {
    return;
  }
  if (judgement.kind == Kind::random) {
    static_assert(sizeof(Extremes) % 8 == 0);
    node.cache = std::make_unique<std::uint64_t[]>(sizeof(Extremes) / 8);
    new (node.cache.get()) Extremes(judgement.extremes);
    node.cache_lines = 1;
  } else {
    node.cache = std::make_unique_for_overwrite<std::uint64_t[]>(scratch_.block.size());
    std::ranges::copy(scratch_.block, node.cache.get());
    node.cache_lines =
        static_cast<std::uint8_t>(std::min<std::size_t>((scratch_.block.size() + 7) / 8, 255));
  }
}

void Grower::divide(Tree& tree, NodeId id, const Judgement& judgement) {
  const Verdict& verdict = judgement.verdict;
  const std::span<Slot> rows = tree.rows_of(id);
  const Column& column = table_.column(verdict.attribute);
  scratch_.goes_left.resize(std::max(scratch_.goes_left.size(), rows.size()));
  std::uint8_t* goes_left = scratch_.goes_left.data();
  if (column.is_coded()) {
    std::array<std::uint8_t, 256> left{};
    for (std::size_t code = 0; code < column.table().size(); ++code) {
      left[code] = verdict.sends_left(column.table()[code]) ? 1 : 0;
    }
    left[Column::kMissingCode] = verdict.missing_left ? 1 : 0;
    column.read_codes([&](auto code_of) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        goes_left[i] = left[code_of(rows[i])];
      }
    });
  } else {
    const float* const values = column.values();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      goes_left[i] = values[rows[i]] <= verdict.threshold ? 1 : 0;
    }
    for (std::size_t i = 0; verdict.is_category && i < rows.size(); ++i) {
      goes_left[i] = values[rows[i]] == verdict.threshold ? 1 : 0;
    }
    for (std::size_t i = 0; verdict.missing_left && i < rows.size(); ++i) {
      goes_left[i] = std::isnan(values[rows[i]]) ? std::uint8_t{1} : goes_left[i];
    }
  }

  // Whatever can fail comes before the split: a node without children keeps its rows.
  scratch_.moved.resize(std::max(scratch_.moved.size(), rows.size()));
  tree.split(id);
  const NodeId left = tree.node(id).left;
  const NodeId right = left + 1;
  // Stable, so that row numbers stay ascending; the left rows are counted on the way.
  std::size_t n_left = 0;
  std::size_t n_right = 0;
  Slot* moved = scratch_.moved.data();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Slot slot = rows[i];
    rows[n_left] = slot;
    moved[n_right] = slot;
    n_left += goes_left[i];
    n_right += 1u - goes_left[i];
  }
  std::copy_n(moved, n_right, rows.data() + n_left);
  scanner_.add_left(goes_left, tree.totals(left),
                    table_.is_regression() ? &tree.squares(left) : nullptr);
  for (std::size_t lane = 0; lane < tree.totals(id).size(); ++lane) {
    tree.totals(right)[lane] = tree.totals(id)[lane] - tree.totals(left)[lane];
  }
  if (table_.is_regression()) {
    tree.squares(right) = tree.squares(id) - tree.squares(left);
  }
  Node& node = tree.node(id);
  tree.node(left).begin = node.begin;
  tree.node(left).size = static_cast<std::uint32_t>(n_left);
  tree.node(right).begin = node.begin + static_cast<std::uint32_t>(n_left);
  tree.node(right).size = static_cast<std::uint32_t>(n_right);
  tree.set_kind(id, judgement.kind);
  node.attribute = verdict.attribute;
  node.threshold = verdict.threshold;
  node.saw_missing = verdict.saw_missing;
  node.missing_left = verdict.missing_left;
  node.is_category = verdict.is_category;
}

void Grower::build(Tree& tree, NodeId id, std::uint64_t key, std::uint32_t depth) {
  struct Step {
    NodeId id;
    std::uint64_t key;
    std::uint32_t depth;
  };
  sort_rows(tree.rows_of(id), scratch_.moved);
  const std::size_t n_words = (spec_.n_columns + 63) / 64;
  auto& constants = scratch_.constants;
  const std::uint32_t base = depth;
  std::vector<Step> stack{{id, key, depth}};
  while (!stack.empty()) {
    const Step step = stack.back();
    stack.pop_back();
    if (is_final(tree.sums(step.id), step.depth)) {
      tree.set_kind(step.id, Kind::leaf);
      continue;
    }
    const std::size_t level = step.depth - base;
    if (constants.size() <= level) {
      constants.resize(level + 1);
    }
    // What is constant in a node is constant below it.
    if (level == 0) {
      constants[0].assign(n_words, 0);
    } else {
      constants[level] = constants[level - 1];
    }
    const Judgement judgement = judge(tree.totals(step.id), step.key, step.depth,
                                      tree.rows_of(step.id), &constants[level]);
    if (judgement.verdict.kind != Verdict::Kind::split) {
      tree.set_kind(step.id, judgement.kind);
      continue;
    }
    divide(tree, step.id, judgement);
    keep_cache(tree.node(step.id), judgement);
    const NodeId left = tree.node(step.id).left;
    stack.push_back({left + 1, right_key(step.key), step.depth + 1});
    stack.push_back({left, left_key(step.key), step.depth + 1});
  }
}

std::size_t Grower::settle(Tree& tree, std::uint64_t root_key) {
  if (tree.n_unbuilt() == 0) {
    return 0;
  }
  struct Step {
    NodeId id;
    std::uint64_t key;
    std::uint32_t depth;
  };
  std::vector<Step> unbuilt;
  tree.walk(root_key, [&](NodeId id, std::uint64_t key, std::uint32_t depth) {
    if (tree.node(id).kind == Kind::unbuilt) {
      unbuilt.push_back({id, key, depth});
    }
    return true;
  });
  for (const Step& step : unbuilt) {
    build(tree, step.id, step.key, step.depth);
  }
  return unbuilt.size();
}

}  // namespace letheon::forest
