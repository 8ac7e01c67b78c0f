// What changes a model: rows leave, rows come, and what they made stale is computed again.
#include <algorithm>
#include <stdexcept>

#include "letheon/boosting/model.hpp"

namespace letheon::boosting {

namespace {

// From this share of the rows on, computing all values again is faster than walking.
constexpr std::size_t kManyRows = 32;

// Shortens a vector and wipes what it keeps of its memory: the rows there may be forgotten later.
template <typename T>
void shrink(std::vector<T>& values, std::size_t size, T wiped) {
  std::fill(values.begin() + static_cast<std::ptrdiff_t>(size), values.end(), wiped);
  values.resize(size);
}

}  // namespace

void Model::mark_chains(Content& content, std::span<const Slot> rows) const noexcept {
  for (const Slot slot : rows) {
    if (const auto chain = content.frame.chain_of(spec_, content.table.owner(slot))) {
      content.stale[*chain] = 1;
      content.settled = std::min(content.settled, spec_.first_round(*chain));
    }
  }
}

bool Model::move_to(Content& content, Frame frame) const {
  const bool same_trees = content.frame.grows_like(frame);
  if (same_trees && content.frame.base != frame.base) {
    content.settled = 0;
  }
  content.frame = std::move(frame);
  if (!same_trees) {
    start_over(content);
  }
  return !same_trees;
}

void Model::walk(Content& content, std::span<const Slot> rows, std::int64_t sign) const {
  const ValueInput input = input_of(content);
  const std::size_t n_outputs = content.frame.n_outputs;
  const LeafRule rule(spec_);
  std::vector<State> states(rows.size() * n_outputs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t k = 0; k < n_outputs; ++k) {
      states[i * n_outputs + k] = input.start(rows[i], k);
    }
  }
  if (rows.size() * kManyRows > content.table.n_slots()) {
    content.settled = 0;
  }
  if (rows.size() == 1) {  // a single row waits for memory most of the time
    for (std::size_t t = 0; t < content.settled * n_outputs; ++t) {
      __builtin_prefetch(content.trees[t].leaves.data() + content.codes[t][rows[0]], 1);
    }
  }
  std::vector<Gradient> gradients(n_outputs);
  for (std::uint32_t round = 0; round < content.settled; ++round) {
    const std::size_t first = round * n_outputs;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      State* const state = states.data() + i * n_outputs;
      if (sign > 0 && round % kCheckRounds == 0) {
        std::copy_n(state, n_outputs,
                    content.checks[round / kCheckRounds].begin() +
                        static_cast<std::ptrdiff_t>(rows[i] * n_outputs));
      }
      input.gradients(rows[i], state, gradients.data());
      const std::int64_t weight = sign * content.table.weight(rows[i]);
      for (std::size_t k = 0; k < n_outputs; ++k) {
        Leaf& leaf = content.trees[first + k].leaves[content.codes[first + k][rows[i]]];
        leaf.g += gradients[k].g * weight;
        leaf.h += gradients[k].h * weight;
        state[k] = static_cast<State>(state[k] + input.step(leaf.step));
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t k = 0; k < n_outputs; ++k) {
        const std::uint8_t code = content.codes[first + k][rows[i]];
        Leaf& leaf = content.trees[first + k].leaves[code];
        const std::int32_t step = rule.value(leaf, rule.dither(round, k));
        if (step != leaf.step) {
          leaf.step = step;
          content.settled = round + 1;  // the rounds before and this one are right
        }
      }
    }
  }
}

void Model::require_people(std::span<const Slot> slots) {
  Content& content = content_;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= content.table.n_slots() || !content.table.is_alive(slots[i]) ||
        (i > 0 && slots[i - 1] >= slots[i])) {
      throw std::invalid_argument("slots must be held, ascending and distinct");
    }
  }
  if (slots.size() >= content.table.n_rows()) {
    throw std::invalid_argument("at least one row must be left");
  }
  for (const Slot slot : slots) {
    content.doomed[slot] = 1;
  }
  const bool is_whole = !content.ids.leaves_rows(slots, content.doomed);
  for (const Slot slot : slots) {
    content.doomed[slot] = 0;
  }
  if (!is_whole) {
    throw std::invalid_argument("slots must be all rows of each person");
  }
}

Report Model::report_of(const Content& content) const noexcept {
  Report report;
  for (std::size_t chain = 0; chain < spec_.n_chains; ++chain) {
    if (content.stale[chain] != 0) {
      ++report.chains;
      report.trees += (spec_.first_round(chain + 1) - spec_.first_round(chain)) *
                      content.frame.n_outputs;
    }
  }
  report.rounds = spec_.n_rounds - content.settled;
  return report;
}

// Wipes all that is known of these rows.
void Model::erase_rows(Content& content, std::span<const Slot> rows) const noexcept {
  const std::size_t n_outputs = content.frame.n_outputs;
  for (const Slot slot : rows) {
    content.doomed[slot] = 1;
    if (spec_.is_regression()) {
      content.sums.add(-std::int64_t{content.table.weight(slot)}, content.table.q(slot));
      content.y[slot] = 0;
    }
    for (auto& codes : content.codes) {
      codes[slot] = kErased;
    }
    for (auto& states : content.checks) {
      std::fill_n(states.data() + slot * n_outputs, n_outputs, State{0});
    }
  }
  content.n_people -= content.ids.count_people(rows);
  content.ids.erase(rows, content.doomed);
  for (const Slot slot : rows) {
    content.doomed[slot] = 0;
  }
}

Report Model::forget(std::span<const Slot> slots, bool eager, std::size_t n_threads) {
  const auto lock = gate_.changing();
  Content& content = content_;
  require_people(slots);
  for (const Slot slot : slots.first(std::min<std::size_t>(slots.size(), 4))) {
    for (const auto& codes : content.codes) {
      __builtin_prefetch(codes.data() + slot, 1);
    }
    for (const auto& states : content.checks) {
      __builtin_prefetch(states.data() + slot * content.frame.n_outputs, 1);
    }
    for (std::size_t j = 0; j < content.table.n_columns(); ++j) {
      content.table.column(j).fetch(slot);
    }
  }
  mark_chains(content, slots);
  walk(content, slots, -1);
  erase_rows(content, slots);
  const bool emptied = content.table.erase(slots);
  if (content.table.rescale()) {
    sum_targets(content);
  }
  const bool everything =
      move_to(content, make_frame(spec_, totals_of(content), content.order));
  Report report = report_of(content);
  report.everything = everything;
  report.emptied = emptied;
  if (eager) {
    settle_content(content, n_threads);
  }
  return report;
}

Report Model::forget_cost(std::span<const Slot> slots, bool reweighed) {
  const auto lock = gate_.changing();
  Content& content = content_;
  require_people(slots);
  RowTotals totals = totals_of(content);
  totals.n_people -= content.ids.count_people(slots);
  for (const Slot slot : slots) {
    const std::int64_t weight = content.table.weight(slot);
    if (spec_.is_regression()) {
      totals.sums.add(-weight, content.table.q(slot));
    } else {
      totals.class_weights[content.table.label(slot)] -= weight;
    }
  }
  const Frame frame = make_frame(spec_, totals, content.order);
  Report report;
  report.emptied = frame.classes != content.frame.classes;
  report.everything =
      reweighed || content.table.would_rescale(slots) || !frame.grows_like(content.frame);
  if (report.everything) {
    report.chains = spec_.n_chains;
    report.trees = spec_.n_rounds * frame.n_outputs;
    report.rounds = spec_.n_rounds;
    return report;
  }
  auto trees = content.trees;
  auto stale = content.stale;
  const std::uint32_t settled_rounds = content.settled;
  mark_chains(content, slots);
  walk(content, slots, -1);
  const bool emptied = report.emptied;
  report = report_of(content);
  report.emptied = emptied;
  report.rounds = frame.base == content.frame.base ? report.rounds : spec_.n_rounds;
  content.trees = std::move(trees);
  content.stale = std::move(stale);
  content.settled = settled_rounds;
  return report;
}

Report Model::reweigh(std::span<const std::uint32_t> before,
                      std::span<const std::uint32_t> after) {
  const auto lock = gate_.changing();
  Content& content = content_;
  content.table.reweigh(before, after);
  std::ranges::fill(content.stale, std::uint8_t{1});
  content.settled = 0;
  move_to(content, make_frame(spec_, totals_of(content), content.order));
  return report_of(content);
}

void Model::settle(std::size_t n_threads) {
  const auto lock = gate_.changing();
  // Holes cost memory and time: close them when they are many.
  const std::size_t n_holes = content_.table.n_slots() - content_.table.n_rows();
  if (8 * n_holes > content_.table.n_slots()) {
    compact();
  }
  settle_content(content_, n_threads);
}

void Model::compact() {
  Content& content = content_;
  const std::size_t n_outputs = content.frame.n_outputs;
  if (content.table.n_slots() == content.table.n_rows()) {
    return;
  }
  const std::vector<Slot> kept = held_slots(content.table);
  // All that needs memory first; what follows cannot fail.
  IdTable ids = content.ids.kept(kept);
  Table table = content.table.kept(kept);
  content.ids = std::move(ids);
  content.table = std::move(table);
  content.doomed.resize(kept.size());
  for (auto& codes : content.codes) {
    for (std::size_t i = 0; i < kept.size(); ++i) {
      codes[i] = codes[kept[i]];
    }
    shrink(codes, kept.size(), kErased);
  }
  for (auto& states : content.checks) {
    for (std::size_t i = 0; i < kept.size(); ++i) {
      for (std::size_t k = 0; k < n_outputs; ++k) {
        states[i * n_outputs + k] = states[kept[i] * n_outputs + k];
      }
    }
    shrink(states, kept.size() * n_outputs, State{0});
  }
  for (std::size_t i = 0; i < kept.size() && !content.y.empty(); ++i) {
    content.y[i] = content.y[kept[i]];
  }
  shrink(content.y, content.y.empty() ? 0 : kept.size(), 0);
}

void Model::encode_rows(Content& content, std::span<const Slot> rows) const {
  for (std::size_t t = 0; t < content.trees.size(); ++t) {
    for (const Slot slot : rows) {
      content.codes[t][slot] = content.trees[t].leaf_of(
          [&](std::uint32_t column) { return content.table.column(column).at(slot); });
    }
  }
}

// Makes rows that are in the table part of the model.
Report Model::take_in(Content& content, std::span<const Slot> rows) const {
  const std::size_t n_slots = content.table.n_slots();
  content.doomed.resize(n_slots, 0);
  for (auto& codes : content.codes) {
    codes.resize(n_slots, kErased);
  }
  for (auto& states : content.checks) {
    states.resize(n_slots * content.frame.n_outputs, 0);
  }
  content.n_people += content.ids.count_people(rows);
  if (content.table.rescale()) {
    sum_targets(content);
  } else if (spec_.is_regression()) {
    for (const Slot slot : rows) {
      content.sums.add(content.table.weight(slot), content.table.q(slot));
      content.y.push_back(content.frame.target(content.table.q(slot)));
    }
  }
  const bool everything = move_to(content, make_frame(spec_, totals_of(content), content.order));
  if (!everything) {
    mark_chains(content, rows);
    encode_rows(content, rows);
    walk(content, rows, 1);
  }
  Report report = report_of(content);
  report.everything = everything;
  return report;
}

Report Model::learn(const Batch& batch, const ClassCodes& classes, const IdBatch& ids, bool eager,
                    std::size_t n_threads) {
  const auto lock = gate_.changing();
  Content& content = content_;
  require_batch(spec_, batch, classes, ids);
  for (const std::uint32_t code : content.frame.classes) {
    if (std::ranges::find(classes.order, code) == classes.order.end()) {
      throw std::invalid_argument("the order leaves out a class that has rows");
    }
  }
  std::vector<std::uint32_t> order(classes.order.begin(), classes.order.end());
  compact();
  const std::size_t n_before = content.table.n_slots();
  const std::uint32_t n_codes_before = content.table.n_classes();
  const auto slots = content.table.append(batch, classes.n_codes);
  try {
    content.ids.append(ids, rows_with_weight(batch));
  } catch (...) {
    content.table.take_back(n_before, n_codes_before);
    throw;
  }
  content.order.swap(order);
  Report report;
  try {
    report = take_in(content, slots);
  } catch (...) {
    // Short of memory half-way: without the new rows, growing everything again is always right.
    content.order.swap(order);
    content.ids.truncate(n_before);
    content.table.take_back(n_before, n_codes_before);
    content.table.rescale();
    content.n_people = content.ids.count_people(held_slots(content.table));
    sum_targets(content);
    content.frame = make_frame(spec_, totals_of(content), content.order);
    start_over(content);
    throw;
  }
  if (eager) {
    settle_content(content, n_threads);
  }
  return report;
}

}  // namespace letheon::boosting
