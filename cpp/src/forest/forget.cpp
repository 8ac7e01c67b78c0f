#include "letheon/forest/forget.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "letheon/forest/kernels.hpp"

namespace letheon::forest {

namespace {

// Many leaving rows: counting what is left is cheaper than taking them out one by one.
bool is_worth_withdrawing(std::size_t n_leaving, std::size_t n_left) noexcept {
  return 4 * n_leaving <= n_left;
}

std::size_t likely_place(Slot slot, std::size_t size, std::size_t n_slots) noexcept {
  return static_cast<std::size_t>(std::uint64_t{slot} * size / n_slots);
}

// The place of a row among ascending ones, which are spread evenly as a rule: from a guess by
// proportion, steps of doubling size touch less memory than halving from the ends.
Slot* find_row(Slot* begin, Slot* end, Slot wanted, std::size_t guess) noexcept {
  Slot* place = begin + guess;
  std::ptrdiff_t step = 8;
  if (*place < wanted) {
    while (end - place > step && place[step] < wanted) {
      place += step;
      step *= 2;
    }
    return std::lower_bound(place, end - place > step ? place + step + 1 : end, wanted);
  }
  while (place - begin > step && place[-step] > wanted) {
    place -= step;
    step *= 2;
  }
  return std::lower_bound(place - begin > step ? place - step : begin, place + 1, wanted);
}

}  // namespace

std::uint32_t part(const RowBlock& block, Members members, const Verdict& split) noexcept {
  const auto right = std::ranges::partition(members, [&](std::uint32_t member) {
    return split.sends_left(block.row(member)[split.attribute]);
  });
  return static_cast<std::uint32_t>(members.size() - right.size());
}

bool same_split(const Verdict& before, const Verdict& after) noexcept {
  return after.kind == Verdict::Kind::split && before.attribute == after.attribute &&
         before.threshold == after.threshold &&
         (!after.saw_missing || before.missing_left == after.missing_left);
}

bool same_sides(const Table& table, const Verdict& before, const Verdict& after,
                std::span<const Slot> rows) noexcept {
  const Column& column = table.column(before.attribute);
  return std::ranges::all_of(rows, [&](Slot slot) {
    const float x = column.at(slot);
    return before.sends_left(x) == after.sends_left(x);
  });
}

void descend(const Node& node, const Step& step, std::uint32_t n_left, std::vector<Step>& stack) {
  const std::uint32_t middle = step.begin + n_left;
  if (middle < step.end) {
    stack.push_back({node.left + 1, right_key(step.key), step.depth + 1, middle, step.end});
  }
  if (step.begin < middle) {
    stack.push_back({node.left, left_key(step.key), step.depth + 1, step.begin, middle});
  }
}

void Forgetter::reserve(std::size_t n_members) {
  constexpr std::size_t kSteps = 64;
  members_.reserve(n_members);
  stack_.reserve(kSteps);
}

void Forgetter::start(Tree& tree, std::uint64_t root_key) {
  report_ = {};
  tree_ = &tree;
  stack_.clear();
  if (!members_.empty()) {
    report_.touched_trees = 1;
    stack_.push_back({Tree::kRoot, root_key, 0, 0, static_cast<std::uint32_t>(members_.size())});
  }
}

void Forgetter::fetch_node() const noexcept {
  if (!stack_.empty()) {
    tree_->fetch(stack_.back().id);
  }
}

void Forgetter::fetch_cache() const noexcept {
  if (stack_.empty()) {
    return;
  }
  const Node& node = tree_->node(stack_.back().id);
  if (node.is_split()) {
    tree_->fetch_cache(stack_.back().id);
  } else if (node.size > 0) {
    const Slot slot = leaving_.slots[members_[stack_.back().begin]];
    tree_->fetch_row(stack_.back().id, likely_place(slot, node.size, table_.n_slots()));
  }
}

bool Forgetter::advance(bool eager) noexcept {
  if (stack_.empty()) {
    return false;
  }
  const bool alone = stack_.back().end - stack_.back().begin == 1;
  bool withdrawn = false;
  if (alone && visit_quickly(*tree_, stack_.back(), withdrawn)) {
    return true;
  }
  const Step step = stack_.back();
  stack_.pop_back();
  const Members passing = Members(members_).subspan(step.begin, step.end - step.begin);
  visit(*tree_, step, passing, withdrawn, eager);
  return true;
}

bool Forgetter::visit_quickly(Tree& tree, Step& step, bool& withdrawn) const noexcept {
  Node& node = tree.node(step.id);
  if (!is_usual_ || node.kind != Kind::greedy || node.cache == nullptr) {
    return false;
  }
  const RowView row = row_view(leaving_, members_[step.begin]);
  std::int64_t* const totals = tree.totals(step.id).data();
  const std::int64_t after = totals[row.label] - row.weight;
  const std::int64_t other = totals[1 - row.label];
  const bool becomes_final =
      after == 0 || other == 0 || after + other < spec_.min_samples_split;
  if (becomes_final || !is_worth_withdrawing(1, node.size - 1)) {
    return false;
  }
  withdrawn = true;
  totals[row.label] = after;
  --node.size;
  const bool goes_left = node.verdict().sends_left(row.x[node.attribute]);
  const std::int64_t* const before = tree.totals(node.left).data();
  std::array<std::int64_t, 2> left{before[0], before[1]};
  left[row.label] -= goes_left ? row.weight : 0;
  if (!Block(node.cache.get()).withdraw_and_confirm(row, left.data(), totals)) {
    return false;
  }
  step.id = node.left + (goes_left ? 0 : 1);
  step.key = goes_left ? left_key(step.key) : right_key(step.key);
  ++step.depth;
  return true;
}

void Forgetter::visit(Tree& tree, const Step& step, Members members, bool withdrawn,
                      bool eager) noexcept {
  Node& node = tree.node(step.id);
  if (!withdrawn) {
    for (const std::uint32_t member : members) {
      tree.count(step.id, row_view(leaving_, member), -1);
    }
    if (!node.is_split()) {
      visit_childless(tree, step, members, eager);
      return;
    }
    node.size -= static_cast<std::uint32_t>(members.size());
    if (grower_.is_final(tree.sums(step.id), step.depth)) {
      drop(tree, step, Kind::leaf, eager);
      return;
    }
  }
  // A threshold may move without moving any row that stays; the leaving ones are where the old
  // one has put them.
  const Verdict before = node.verdict();
  const std::uint32_t n_left = part(leaving_, members, before);
  const bool use_cache =
      node.cache != nullptr && is_worth_withdrawing(members.size(), node.size);
  if (use_cache && node.kind == Kind::greedy && !withdrawn) {
    withdraw(Block(node.cache.get()), members);
  }
  Judgement judgement{.kind = Kind::unbuilt};
  try {
    judgement = judge(tree, step, members, use_cache);
  } catch (const std::bad_alloc&) {
    judgement = {.kind = Kind::unbuilt};
  }
  if (!same_split(node.verdict(), judgement.verdict)) {
    const bool splits = judgement.verdict.kind == Verdict::Kind::split;
    drop(tree, step, splits ? Kind::unbuilt : judgement.kind, eager);
    return;
  }
  node.saw_missing = judgement.verdict.saw_missing;
  node.missing_left = judgement.verdict.missing_left;
  descend(node, step, n_left, stack_);
}

void Forgetter::withdraw(Block block, Members members) const noexcept {
  for (const std::uint32_t member : members) {
    block.withdraw(row_view(leaving_, member));
  }
}

void Forgetter::visit_childless(Tree& tree, const Step& step, Members members,
                                bool eager) noexcept {
  remove_rows(tree, step.id, members);
  if (tree.node(step.id).kind == Kind::blocked &&
      !grower_.is_final(tree.sums(step.id), step.depth)) {
    // The values that are left may bring other candidates forward.
    ++report_.rebuilt_nodes;
    report_.rebuilt_rows += tree.node(step.id).size;
    tree.set_kind(step.id, Kind::unbuilt);
  }
  if (eager && tree.node(step.id).kind == Kind::unbuilt) {
    build(tree, step);
  }
}

void Forgetter::remove_rows(Tree& tree, NodeId id, Members members) noexcept {
  Node& node = tree.node(id);
  constexpr std::size_t kFew = 4;
  if (members.size() > kFew) {
    const std::span<Slot> rows = tree.rows_of(id);
    const auto gone = std::ranges::remove_if(rows, [&](Slot slot) { return doomed_[slot] != 0; });
    node.size -= static_cast<std::uint32_t>(gone.size());
    std::ranges::fill(gone, 0);
    return;
  }
  for (const std::uint32_t member : members) {
    const std::span<Slot> rows = tree.rows_of(id);
    Slot* const end = rows.data() + node.size;
    if (node.kind == Kind::unbuilt) {  // in no order, and none is needed
      rows[place_of(rows.data(), node.size, leaving_.slots[member])] = *(end - 1);
      *(end - 1) = 0;
    } else {
      const Slot slot = leaving_.slots[member];
      Slot* const place =
          find_row(rows.data(), end, slot, likely_place(slot, node.size, table_.n_slots()));
      // Close the gap from the side where fewer rows stand.
      if (end - place <= place - rows.data()) {
        std::copy(place + 1, end, place);
        *(end - 1) = 0;
      } else {
        std::copy_backward(rows.data(), place, place + 1);
        rows[0] = 0;
        ++node.begin;
      }
    }
    --node.size;
  }
}

void Forgetter::drop(Tree& tree, const Step& step, Kind kind, bool eager) noexcept {
  tree.collapse(step.id, kind, &doomed_);
  if (kind != Kind::unbuilt) {
    std::ranges::sort(tree.rows_of(step.id));
    return;
  }
  ++report_.rebuilt_nodes;
  report_.rebuilt_rows += tree.node(step.id).size;
  if (eager) {
    build(tree, step);
  }
}

void Forgetter::build(Tree& tree, const Step& step) noexcept {
  try {
    grower_.build(tree, step.id, step.key, step.depth);
  } catch (const std::bad_alloc&) {  // NOLINT: an unbuilt node is a legal state
  }
}

Judgement Forgetter::judge(Tree& tree, const Step& step, Members members, bool use_cache) {
  Node& node = tree.node(step.id);
  if (use_cache) {
    const Judgement judgement =
        node.kind == Kind::greedy
            ? judge_by_block(Block(node.cache.get()), tree.totals(step.id))
            : judge_by_extremes(tree, step, members, extremes_of(node));
    if (judgement.kind != Kind::unbuilt) {
      return judgement;
    }
  }
  if (node.size < spec_.cache_rows) {
    return {.kind = Kind::unbuilt};
  }
  const Judgement judgement = judge_by_rows(tree, step, tree.totals(step.id));
  if (moves_nothing(node, judgement)) {
    node.threshold = judgement.verdict.threshold;
  }
  if (same_split(node.verdict(), judgement.verdict)) {
    grower_.keep_cache(node, judgement);
  }
  return judgement;
}

bool Forgetter::moves_nothing(const Node& node, const Judgement& judgement) const noexcept {
  return node.kind == Kind::random && judgement.kind == Kind::random &&
         node.attribute == judgement.verdict.attribute &&
         same_sides(table_, node.verdict(), judgement.verdict, scratch_.rows);
}

Judgement Forgetter::judge_by_block(Block block, Lanes totals) const noexcept {
  const Verdict verdict = block.decide(totals, spec_);
  switch (verdict.kind) {
    case Verdict::Kind::split:
      return {verdict, Kind::greedy, {}};
    case Verdict::Kind::none:
      return {.kind = Kind::blocked};
    default:
      return {.kind = Kind::unbuilt};
  }
}

Judgement Forgetter::judge_by_extremes(const Tree& tree, const Step& step, Members members,
                                       Extremes& extremes) const noexcept {
  const Node& node = tree.node(step.id);
  std::int64_t left = tree.weight(node.left);
  std::int64_t right = tree.weight(node.left + 1);
  for (const std::uint32_t member : members) {
    const RowView row = row_view(leaving_, member);
    const float x = row.x[node.attribute];
    extremes.missing_weight -= std::isnan(x) ? row.weight : 0;
    extremes.least_weight -= x == extremes.least ? row.weight : 0;
    extremes.greatest_weight -= extremes.is_greatest(x) ? row.weight : 0;
    (node.verdict().sends_left(x) ? left : right) -= row.weight;
  }
  const bool constant = extremes.least == extremes.greatest && extremes.missing_weight == 0;
  if (extremes.least_weight == 0 || extremes.greatest_weight == 0 || constant) {
    return {.kind = Kind::unbuilt};
  }
  const Verdict verdict = random_split(step.key, spec_, node.attribute, extremes);
  if (!same_split(node.verdict(), verdict)) {
    return {.kind = Kind::unbuilt};
  }
  const std::int64_t least = spec_.min_samples_leaf;
  if (left < least || right < least) {
    return {.kind = Kind::blocked};
  }
  return {verdict, Kind::random, extremes};
}

Judgement Forgetter::judge_by_rows(const Tree& tree, const Step& step, Lanes totals) {
  ++report_.rescans;
  scratch_.rows.clear();
  tree.collect(step.id, &doomed_, scratch_.rows);
  auto& constant = scratch_.passed_over;
  constant.assign((spec_.n_columns + 63) / 64, 0);
  const Node& node = tree.node(step.id);
  if (node.kind == Kind::greedy && node.cache != nullptr) {
    mark_passed_over(Block(node.cache.get()), step.key, constant);
  }
  return grower_.judge(totals, step.key, step.depth, scratch_.rows, &constant);
}

// What was constant is so without the leaving rows too, and need not be looked at again.
void Forgetter::mark_passed_over(Block block, std::uint64_t key,
                                 std::vector<std::uint64_t>& constant) {
  std::size_t n_left = block.n_attributes();
  const bool all_that_vary = n_left < spec_.max_features;
  scratch_.order.start(key, spec_, nullptr);
  while (n_left > 0 || all_that_vary) {
    const auto attribute = scratch_.order.next();
    if (!attribute) {
      return;
    }
    if (block.has(*attribute)) {
      --n_left;
    } else {
      constant[*attribute / 64] |= std::uint64_t{1} << (*attribute % 64);
    }
  }
}

Report Forgetter::cost(const Tree& tree, std::uint64_t root_key) {
  report_ = {};
  if (members_.empty()) {
    return report_;
  }
  report_.touched_trees = 1;
  stack_.assign(1, {Tree::kRoot, root_key, 0, 0, static_cast<std::uint32_t>(members_.size())});
  while (!stack_.empty()) {
    const Step step = stack_.back();
    stack_.pop_back();
    const auto passing = Members(members_).subspan(step.begin, step.end - step.begin);
    if (!cost_at(tree, step, passing)) {
      continue;
    }
    const Node& node = tree.node(step.id);
    descend(node, step, part(leaving_, passing, node.verdict()), stack_);
  }
  return report_;
}

// Adds what would be dropped here; true if the walk continues below this node.
bool Forgetter::cost_at(const Tree& tree, const Step& step, Members members) {
  const Node& node = tree.node(step.id);
  if (!node.is_split() && node.kind != Kind::blocked) {
    return false;
  }
  const auto remaining = node.size - static_cast<std::uint32_t>(members.size());
  Wide squares = table_.is_regression() ? tree.squares(step.id) : 0;
  scratch_.lanes.assign(tree.totals(step.id).begin(), tree.totals(step.id).end());
  for (const std::uint32_t member : members) {
    count_row(row_view(leaving_, member), -1, scratch_.lanes,
              table_.is_regression() ? &squares : nullptr);
  }
  const Sums sums{scratch_.lanes, table_.is_regression() ? &squares : nullptr};
  if (grower_.is_final(sums, step.depth)) {
    return false;
  }
  Judgement judgement{.kind = Kind::unbuilt};
  const bool use_cache =
      node.cache != nullptr && is_worth_withdrawing(members.size(), remaining);
  if (use_cache && node.kind == Kind::greedy) {
    const std::size_t words = Block(node.cache.get()).n_bytes() / 8;
    scratch_.block.assign(node.cache.get(), node.cache.get() + words);
    withdraw(Block(scratch_.block.data()), members);
    judgement = judge_by_block(Block(scratch_.block.data()), scratch_.lanes);
  } else if (use_cache) {
    Extremes extremes = extremes_of(node);
    judgement = judge_by_extremes(tree, step, members, extremes);
  }
  if (judgement.kind == Kind::unbuilt && node.is_split() && remaining >= spec_.cache_rows) {
    judgement = judge_by_rows(tree, step, scratch_.lanes);
  }
  if (node.is_split() && same_split(node.verdict(), judgement.verdict)) {
    return true;
  }
  if (moves_nothing(node, judgement)) {
    return true;
  }
  if (judgement.verdict.kind != Verdict::Kind::split && judgement.kind != Kind::unbuilt) {
    return false;  // becomes a leaf: nothing to build
  }
  ++report_.rebuilt_nodes;
  report_.rebuilt_rows += remaining;
  return false;
}

}  // namespace letheon::forest
