#include "letheon/forest/learn.hpp"

#include <algorithm>
#include <cmath>

namespace letheon::forest {

namespace {

bool same_value(float a, float b) noexcept {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Some row of a subtree that has at least one.
Slot any_row(const Tree& tree, NodeId id) noexcept {
  while (tree.node(id).is_split()) {
    const NodeId left = tree.node(id).left;
    id = tree.node(left).size > 0 ? left : left + 1;
  }
  return tree.rows_of(id).front();
}

}  // namespace

Report Learner::learn(Tree& tree, std::uint64_t root_key, std::vector<std::uint32_t>& members) {
  report_ = {};
  where_.clear();
  arrived_.clear();
  if (members.empty()) {
    return report_;
  }
  report_.touched_trees = 1;
  stack_.assign(1, {Tree::kRoot, root_key, 0, 0, static_cast<std::uint32_t>(members.size())});
  while (!stack_.empty()) {
    const Step step = stack_.back();
    stack_.pop_back();
    visit(tree, step, Members(members).subspan(step.begin, step.end - step.begin));
  }
  tree.insert(where_, arrived_);
  return report_;
}

void Learner::arrive(NodeId id, Members members) {
  where_.push_back(id);
  auto& slots = arrived_.emplace_back();
  for (const std::uint32_t member : members) {
    slots.push_back(coming_.slots[member]);
  }
  std::ranges::sort(slots);
}

void Learner::visit(Tree& tree, const Step& step, Members members) {
  for (const std::uint32_t member : members) {
    tree.count(step.id, row_view(coming_, member), +1);
  }
  Node& node = tree.node(step.id);
  if (!node.is_split()) {
    if (node.kind != Kind::unbuilt && !grower_.is_final(tree.sums(step.id), step.depth)) {
      ++report_.rebuilt_nodes;
      report_.rebuilt_rows += node.size + members.size();
      tree.set_kind(step.id, Kind::unbuilt);
    }
    arrive(step.id, members);
    return;
  }
  const Judgement judgement = judge(tree, step, members);
  if (!same_split(node.verdict(), judgement.verdict)) {
    tree.collapse(step.id, Kind::unbuilt, nullptr);
    ++report_.rebuilt_nodes;
    report_.rebuilt_rows += node.size + members.size();
    arrive(step.id, members);
    return;
  }
  node.size += static_cast<std::uint32_t>(members.size());
  node.saw_missing = judgement.verdict.saw_missing;
  node.missing_left = judgement.verdict.missing_left;
  descend(node, step, part(coming_, members, node.verdict()), stack_);
}

Judgement Learner::judge(Tree& tree, const Step& step, Members members) {
  Node& node = tree.node(step.id);
  if (node.cache != nullptr) {
    const Judgement judgement = judge_by_cache(tree, step, members);
    if (judgement.kind != Kind::unbuilt) {
      return judgement;
    }
  }
  if (node.size + members.size() < spec_.cache_rows) {
    return {.kind = Kind::unbuilt};
  }
  ++report_.rescans;
  auto& rows = scratch_.rows;
  rows.clear();
  tree.collect(step.id, nullptr, rows);
  const std::size_t n_held = rows.size();
  for (const std::uint32_t member : members) {
    rows.push_back(coming_.slots[member]);
  }
  const Judgement judgement = grower_.judge(tree.totals(step.id), step.key, step.depth, rows);
  const std::span<const Slot> held(rows.data(), n_held);
  if (node.kind == Kind::random && judgement.kind == Kind::random &&
      node.attribute == judgement.verdict.attribute &&
      same_sides(table_, node.verdict(), judgement.verdict, held)) {
    node.threshold = judgement.verdict.threshold;
    node.missing_left = judgement.verdict.missing_left;
  }
  if (same_split(node.verdict(), judgement.verdict)) {
    grower_.keep_cache(node, judgement);
  }
  return judgement;
}

Judgement Learner::judge_by_cache(Tree& tree, const Step& step, Members members) {
  Node& node = tree.node(step.id);
  if (!passed_over_rightly(tree, step, members)) {
    return {.kind = Kind::unbuilt};
  }
  if (node.kind == Kind::random) {
    if (!spec_.is_category(node.attribute)) {
      widen_extremes(extremes_of(node), node.attribute, members);
    } else if (!admit_categories(extremes_of(node), step.key, node.attribute, members)) {
      return {.kind = Kind::unbuilt};
    }
    const Verdict verdict = random_split(step.key, spec_, node.attribute, extremes_of(node));
    const bool same = same_split(node.verdict(), verdict);
    return same ? Judgement{verdict, Kind::random, {}} : Judgement{.kind = Kind::unbuilt};
  }
  if (!admit(tree, step, members)) {
    return {.kind = Kind::unbuilt};
  }
  const Verdict verdict = Block(node.cache.get()).decide(tree.totals(step.id), spec_);
  if (verdict.kind == Verdict::Kind::rescan) {
    return {.kind = Kind::unbuilt};
  }
  return {verdict, verdict.kind == Verdict::Kind::split ? Kind::greedy : Kind::blocked, {}};
}

bool Learner::admit(const Tree& tree, const Step& step, Members members) const noexcept {
  Block block(tree.node(step.id).cache.get());
  const std::int64_t weight = tree.weight(step.id);
  return std::ranges::all_of(members, [&](std::uint32_t member) {
    return block.admit(row_view(coming_, member), step.key, spec_, weight);
  });
}

// False: a row brings another category of choice, or the second one.
bool Learner::admit_categories(Extremes& extremes, std::uint64_t key, std::uint32_t attribute,
                               Members members) const noexcept {
  const std::uint64_t threshold_key = draw(key, Use::threshold, spec_.column_key(attribute));
  const std::uint32_t chosen = priority(threshold_key, extremes.least);
  for (const std::uint32_t member : members) {
    const RowView row = row_view(coming_, member);
    const float x = row.x[attribute];
    if (!std::isnan(x) && x != extremes.least &&
        (extremes.greatest == extremes.least || priority(threshold_key, x) < chosen)) {
      return false;
    }
    extremes.missing_weight += std::isnan(x) ? row.weight : 0;
    extremes.least_weight += x == extremes.least ? row.weight : 0;
    extremes.greatest_weight += extremes.is_greatest(x) ? row.weight : 0;
  }
  return true;
}

void Learner::widen_extremes(Extremes& extremes, std::uint32_t attribute,
                             Members members) const noexcept {
  for (const std::uint32_t member : members) {
    const RowView row = row_view(coming_, member);
    const float x = row.x[attribute];
    if (std::isnan(x)) {
      extremes.missing_weight += row.weight;
      continue;
    }
    if (x < extremes.least) {
      extremes.least = x;
      extremes.least_weight = 0;
    }
    if (x > extremes.greatest) {
      extremes.greatest = x;
      extremes.greatest_weight = 0;
    }
    extremes.least_weight += x == extremes.least ? row.weight : 0;
    extremes.greatest_weight += x == extremes.greatest ? row.weight : 0;
  }
}

bool Learner::passed_over_rightly(const Tree& tree, const Step& step, Members members) {
  const Node& node = tree.node(step.id);
  const bool random = node.kind == Kind::random;
  const Block block(random ? nullptr : node.cache.get());
  const std::size_t n_chosen = random ? 1 : block.n_attributes();
  const bool all_that_vary = !random && n_chosen < spec_.max_features;
  const auto is_chosen = [&](std::uint32_t attribute) {
    return random ? attribute == node.attribute : block.has(attribute);
  };
  const Slot held = any_row(tree, step.id);
  scratch_.order.start(step.key, spec_, nullptr);
  for (std::size_t n_met = 0; n_met < n_chosen || all_that_vary;) {
    const auto attribute = scratch_.order.next();
    if (!attribute) {
      return true;
    }
    if (is_chosen(*attribute)) {
      ++n_met;
      continue;
    }
    const float value = table_.column(*attribute).at(held);
    const bool constant = std::ranges::all_of(members, [&](std::uint32_t member) {
      return same_value(coming_.row(member)[*attribute], value);
    });
    if (!constant) {
      return false;
    }
  }
  return true;
}

}  // namespace letheon::forest
