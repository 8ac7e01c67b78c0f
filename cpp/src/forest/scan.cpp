#include "letheon/forest/scan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "letheon/forest/kernels.hpp"
#include "letheon/forest/keys.hpp"

namespace letheon::forest {

namespace {

constexpr std::uint64_t kAllPriorities = std::uint64_t{1} << 32;
constexpr std::size_t kPackedCells = 257;

bool get(const std::vector<std::uint64_t>& bits, std::uint32_t index) noexcept {
  return (bits[index / 64] >> (index % 64) & 1) != 0;
}

void set(std::vector<std::uint64_t>& bits, std::uint32_t index) noexcept {
  bits[index / 64] |= std::uint64_t{1} << (index % 64);
}

// Takes repetitions out of a sorted list and counts them.
void count_copies(std::vector<std::uint64_t>& sorted, std::vector<std::int64_t>& copies) {
  copies.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i] == sorted[kept - 1]) {
      ++copies.back();
    } else {
      sorted[kept++] = sorted[i];
      copies.push_back(1);
    }
  }
  sorted.resize(kept);
}

// The bits of a float as a number with the same order.
constexpr std::uint32_t ordered_bits(std::uint32_t bits) noexcept {
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Adds row i to the lanes at `lanes`.
struct Adder {
  const std::uint16_t* labels;
  const std::int64_t* q;
  const std::uint32_t* weights;  // null: all 1

  void operator()(std::int64_t* lanes, std::size_t i) const noexcept {
    const std::int64_t weight = weights == nullptr ? 1 : weights[i];
    if (labels != nullptr) {
      lanes[labels[i]] += weight;
    } else {
      lanes[0] += weight;
      lanes[1] += weight * q[i];
    }
  }
};

// Two classes without weights: both counts of a cell in one number, and neighbouring rows in
// different tables, so that one addition seldom waits for another.
template <typename Cell>
void tally_two(std::size_t n, std::size_t n_cells, const std::uint16_t* labels,
               std::int64_t* tallies, Cell cell) {
  std::array<std::uint64_t, kPackedCells> even;
  std::array<std::uint64_t, kPackedCells> odd;
  std::fill_n(even.begin(), n_cells, 0);
  std::fill_n(odd.begin(), n_cells, 0);
  std::size_t i = 0;
  for (; i + 2 <= n; i += 2) {
    even[cell(i)] += 1 + (std::uint64_t{labels[i]} << 32);
    odd[cell(i + 1)] += 1 + (std::uint64_t{labels[i + 1]} << 32);
  }
  if (i < n) {
    even[cell(i)] += 1 + (std::uint64_t{labels[i]} << 32);
  }
  for (std::size_t k = 0; k < n_cells; ++k) {
    const std::uint64_t both = even[k] + odd[k];
    const auto second = static_cast<std::int64_t>(both >> 32);
    tallies[2 * k] += static_cast<std::int64_t>(both & 0xFFFFFFFFu) - second;
    tallies[2 * k + 1] += second;
  }
}

// Calls add(lanes, i) with the branches of Adder decided outside of the loop.
template <typename Cell>
void tally(std::size_t n, std::uint32_t n_lanes, std::size_t n_cells, const Adder& adder,
           std::int64_t* tallies, Cell cell) {
  if (adder.labels != nullptr && adder.weights == nullptr) {
    if (n_lanes == 2 && n_cells <= kPackedCells) {
      tally_two(n, n_cells, adder.labels, tallies, cell);
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      ++tallies[cell(i) * n_lanes + adder.labels[i]];
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    adder(tallies + cell(i) * n_lanes, i);
  }
}

template <typename T>
void gather(const T* source, std::span<const Slot> rows, std::vector<T>& out) {
  if (out.size() < rows.size()) {
    out.resize(rows.size());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out[i] = source[rows[i]];
  }
}

}  // namespace

void AttributeOrder::start(std::uint64_t key, std::uint32_t n_columns,
                           const std::vector<std::uint64_t>* known_constant) {
  heap_.clear();
  for (std::uint32_t a = 0; a < n_columns; ++a) {
    if (known_constant == nullptr || !get(*known_constant, a)) {
      heap_.emplace_back(draw(key, Use::order, a), a);
    }
  }
  std::ranges::make_heap(heap_, std::greater{});
}

std::optional<std::uint32_t> AttributeOrder::next() noexcept {
  if (heap_.empty()) {
    return std::nullopt;
  }
  std::ranges::pop_heap(heap_, std::greater{});
  const std::uint32_t attribute = heap_.back().second;
  heap_.pop_back();
  return attribute;
}

void Scanner::load(std::span<const Slot> rows) {
  rows_ = rows;
  labels_ = nullptr;
  q_ = nullptr;
  weights_ = nullptr;
  if (table_.is_regression()) {
    gather(table_.qs(), rows, scratch_.q);
    q_ = scratch_.q.data();
  } else {
    gather(table_.labels(), rows, scratch_.labels);
    labels_ = scratch_.labels.data();
  }
  if (table_.is_weighted()) {
    gather(table_.weights(), rows, scratch_.weights);
    weights_ = scratch_.weights.data();
  }
}

std::uint32_t Scanner::keep(std::size_t n_rows) const noexcept {
  if (spec_.n_thresholds > kUnlimited - spec_.slack - 1) {
    return kUnlimited;
  }
  return spec_.n_thresholds + 1 + (n_rows >= spec_.cache_rows ? spec_.slack : 0);
}

void Scanner::greedy(std::uint64_t key, std::uint32_t keep,
                     std::vector<std::uint64_t>* known_constant) {
  scratch_.draft.clear(table_.n_lanes());
  scratch_.order.start(key, spec_.n_columns, known_constant);
  while (scratch_.draft.lists.size() < spec_.max_features) {
    const auto attribute = scratch_.order.next();
    if (!attribute) {
      return;
    }
    const std::uint64_t threshold_key = draw(key, Use::threshold, *attribute);
    if (!list(*attribute, threshold_key, keep) && known_constant != nullptr) {
      set(*known_constant, *attribute);
    }
  }
}

bool Scanner::list(std::uint32_t attribute, std::uint64_t key, std::uint32_t keep) {
  const Column& column = table_.column(attribute);
  return column.is_coded() ? list_codes(column, attribute, key, keep)
                           : list_values(column, attribute, key, keep);
}

bool Scanner::codes_vary(const Column& column) const noexcept {
  const std::uint8_t* codes = column.codes();
  const std::uint8_t first = codes[rows_[0]];
  return std::ranges::any_of(rows_, [=](Slot slot) { return codes[slot] != first; });
}

void Scanner::tally_codes(const Column& column) {
  const std::size_t n_codes = column.table().size();
  const std::uint32_t n_lanes = table_.n_lanes();
  const std::uint8_t* codes = column.codes();
  // Rows without a value are counted last.
  scratch_.tallies.assign((n_codes + 1) * n_lanes, 0);
  std::int64_t* tallies = scratch_.tallies.data();
  const Adder adder{labels_, q_, weights_};
  if (n_codes == 2 && n_lanes == 2 && labels_ != nullptr && weights_ == nullptr &&
      !column.has_missing()) {
    // The common one-hot column: two sums and no table.
    std::int64_t ones = 0;
    std::int64_t ones_labelled = 0;
    std::int64_t labelled = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::uint32_t code = codes[rows_[i]];
      const std::uint32_t label = labels_[i];
      ones += code;
      ones_labelled += code & label;
      labelled += label;
    }
    const auto n = static_cast<std::int64_t>(rows_.size());
    tallies[0] = n - ones - (labelled - ones_labelled);
    tallies[1] = labelled - ones_labelled;
    tallies[2] = ones - ones_labelled;
    tallies[3] = ones_labelled;
    return;
  }
  const Slot* const rows = rows_.data();
  tally(rows_.size(), n_lanes, n_codes + 1, adder, tallies, [=](std::size_t i) {
    return std::min<std::size_t>(codes[rows[i]], n_codes);
  });
}

bool Scanner::list_codes(const Column& column, std::uint32_t attribute, std::uint64_t key,
                         std::uint32_t keep) {
  if (!codes_vary(column)) {
    return false;
  }
  tally_codes(column);
  const std::uint32_t n_lanes = table_.n_lanes();
  const auto values = column.table();
  const bool regression = table_.is_regression();
  const auto weight_at = [&](std::size_t code) {
    const std::int64_t* lanes = scratch_.tallies.data() + code * n_lanes;
    return regression ? lanes[0] : class_weight({lanes, n_lanes});
  };
  auto& found = scratch_.found;
  found.clear();
  for (std::size_t code = 0; code < values.size(); ++code) {
    if (weight_at(code) > 0) {
      found.push_back(std::uint64_t{priority(key, values[code])} << 32 | code);
    }
  }
  const bool truncated = found.size() > keep;
  if (truncated) {
    std::ranges::nth_element(found, found.begin() + keep);
    found.resize(keep);
  }
  std::ranges::sort(found);

  // left[code] = lanes of all rows up to that code.
  auto& left = scratch_.tallies;
  Draft& draft = scratch_.draft;
  const auto first = static_cast<std::uint32_t>(draft.values.size());
  for (const std::uint64_t entry : found) {
    draft.values.push_back(values[entry & 0xFFFFFFFFu]);
    draft.copies.push_back(weight_at(entry & 0xFFFFFFFFu));
  }
  for (std::size_t k = n_lanes; k < values.size() * n_lanes; ++k) {
    left[k] += left[k - n_lanes];
  }
  for (const std::uint64_t entry : found) {
    const std::int64_t* lanes = left.data() + (entry & 0xFFFFFFFFu) * n_lanes;
    draft.left.insert(draft.left.end(), lanes, lanes + n_lanes);
  }
  const std::int64_t* missing = left.data() + values.size() * n_lanes;
  const bool has_missing = weight_at(values.size()) > 0;
  draft.missing.insert(draft.missing.end(), missing, missing + n_lanes);
  draft.lists.push_back({attribute, first, static_cast<std::uint32_t>(found.size()), truncated,
                         has_missing});
  return true;
}

void Scanner::gather_values(const Column& column) {
  gather(column.values(), rows_, scratch_.values);
}

std::size_t Scanner::set_missing_apart(std::int64_t* missing) {
  const std::size_t n = rows_.size();
  auto& values = scratch_.values;
  const Adder adder{labels_, q_, weights_};
  scratch_.labels_present.resize(labels_ == nullptr ? 0 : n);
  scratch_.q_present.resize(q_ == nullptr ? 0 : n);
  scratch_.weights_present.resize(weights_ == nullptr ? 0 : n);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(values[i])) {
      adder(missing, i);
      continue;
    }
    values[kept] = values[i];
    if (labels_ != nullptr) {
      scratch_.labels_present[kept] = labels_[i];
    } else {
      scratch_.q_present[kept] = q_[i];
    }
    if (weights_ != nullptr) {
      scratch_.weights_present[kept] = weights_[i];
    }
    ++kept;
  }
  return kept;
}

bool Scanner::lowest_priorities(std::uint64_t key, std::size_t n, std::uint32_t keep) {
  const float* values = scratch_.values.data();
  scratch_.priorities.resize(std::max(scratch_.priorities.size(), n));
  std::uint32_t* priority_of = scratch_.priorities.data();
  priorities(key, values, n, priority_of);
  scratch_.place_numbers.resize(std::max(scratch_.place_numbers.size(), n));
  std::uint32_t* const numbers = scratch_.place_numbers.data();
  auto& places = scratch_.places;
  auto& found = scratch_.found;
  // A bound that somewhat more than `keep` values pass; raised if they were too few.
  const std::uint64_t wanted = std::uint64_t{keep} + keep / 4 + 12;
  std::uint64_t bound = n <= wanted ? kAllPriorities : kAllPriorities / n * wanted;
  for (;;) {
    if (bound >= kAllPriorities) {
      std::iota(numbers, numbers + n, 0u);
      places = {numbers, n};
    } else {
      places = {numbers,
                places_below(priority_of, n, static_cast<std::uint32_t>(bound), numbers)};
    }
    found.clear();
    for (const std::uint32_t i : places) {
      found.push_back(std::uint64_t{priority_of[i]} << 32 |
                      std::bit_cast<std::uint32_t>(values[i]));
    }
    std::ranges::sort(found);
    count_copies(found, scratch_.copies);
    if (bound >= kAllPriorities || found.size() >= keep) {
      break;
    }
    bound = std::min(bound * 4, kAllPriorities);
  }
  const bool truncated = found.size() > keep || bound < kAllPriorities;
  found.resize(std::min<std::size_t>(found.size(), keep));
  return truncated;
}

// Whoever has a kept value was among those whose priority was low enough.
void Scanner::weigh_copies(const float* x, const std::uint32_t* weights,
                           std::span<const std::uint64_t> by_value, std::size_t first) {
  Draft& draft = scratch_.draft;
  std::fill(draft.copies.begin() + static_cast<std::ptrdiff_t>(first), draft.copies.end(), 0);
  for (const std::uint32_t i : scratch_.places) {
    const std::uint64_t key = ordered_bits(std::bit_cast<std::uint32_t>(x[i]));
    const auto place = std::ranges::lower_bound(by_value, key << 32);
    if (place != by_value.end() && *place >> 32 == key) {
      draft.copies[first + (*place & 0xFFFFFFFFu)] += weights[i];
    }
  }
}

bool Scanner::list_values(const Column& column, std::uint32_t attribute, std::uint64_t key,
                          std::uint32_t keep) {
  gather_values(column);
  const std::uint32_t n_lanes = table_.n_lanes();
  bool has_missing = false;
  if (column.has_missing()) {
    const Range range = range_of(scratch_.values.data(), rows_.size());
    has_missing = range.has_missing;
    if (range.least > range.greatest) {
      return false;
    }
  }
  Draft& draft = scratch_.draft;
  const std::size_t missing_at = draft.missing.size();
  draft.missing.resize(missing_at + n_lanes, 0);
  std::size_t n = rows_.size();
  Adder adder{labels_, q_, weights_};
  if (has_missing) {
    n = set_missing_apart(draft.missing.data() + missing_at);
    adder = {labels_ == nullptr ? nullptr : scratch_.labels_present.data(),
             scratch_.q_present.data(),
             weights_ == nullptr ? nullptr : scratch_.weights_present.data()};
  }
  const bool truncated = lowest_priorities(key, n, keep);
  if (scratch_.found.size() == 1 && !truncated && !has_missing) {
    draft.missing.resize(missing_at);
    return false;
  }

  // The kept values, ascending, cut the line into cells.
  const auto& found = scratch_.found;
  const std::size_t m = found.size();
  auto& by_value = scratch_.by_value;  // (value, entry)
  by_value.clear();
  const auto first = static_cast<std::uint32_t>(draft.values.size());
  for (std::size_t k = 0; k < m; ++k) {
    const auto bits = static_cast<std::uint32_t>(found[k]);
    draft.values.push_back(std::bit_cast<float>(bits));
    by_value.push_back(std::uint64_t{ordered_bits(bits)} << 32 | k);
  }
  std::ranges::sort(by_value);
  auto& edges = scratch_.edges;
  edges.resize(m);
  for (std::size_t k = 0; k < m; ++k) {
    edges[k] = draft.values[first + (by_value[k] & 0xFFFFFFFFu)];
  }
  draft.copies.insert(draft.copies.end(), scratch_.copies.begin(),
                      scratch_.copies.begin() + static_cast<std::ptrdiff_t>(m));
  const float* const x = scratch_.values.data();
  if (adder.weights != nullptr) {
    weigh_copies(x, adder.weights, by_value, first);
  }
  scratch_.cells.resize(std::max(scratch_.cells.size(), n));
  count_edges_below(x, n, edges.data(), m, scratch_.cells.data());
  auto& tallies = scratch_.tallies;
  tallies.assign((m + 1) * n_lanes, 0);
  const std::uint32_t* const below = scratch_.cells.data();
  tally(n, n_lanes, m + 1, adder, tallies.data(), [=](std::size_t i) { return below[i]; });
  // Cell k holds what lies above edge k - 1, edge k included.
  for (std::size_t k = n_lanes; k < m * n_lanes; ++k) {
    tallies[k] += tallies[k - n_lanes];
  }
  draft.left.resize((first + m) * n_lanes);
  for (std::size_t k = 0; k < m; ++k) {
    std::copy_n(tallies.data() + k * n_lanes, n_lanes,
                draft.left.data() + (first + (by_value[k] & 0xFFFFFFFFu)) * n_lanes);
  }
  draft.lists.push_back({attribute, first, static_cast<std::uint32_t>(m), truncated,
                         has_missing});
  return true;
}

std::int64_t Scanner::weight_left(const Verdict& verdict) const noexcept {
  const Column& column = table_.column(verdict.attribute);
  std::int64_t weight = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (verdict.sends_left(column.at(rows_[i]))) {
      weight += weights_ == nullptr ? 1 : weights_[i];
    }
  }
  return weight;
}

void Scanner::add_left(const std::uint8_t* goes_left, std::span<std::int64_t> lanes,
                       Wide* squares) const noexcept {
  const std::size_t n = rows_.size();
  if (labels_ != nullptr && weights_ == nullptr && lanes.size() == 2) {
    std::int64_t left = 0;
    std::int64_t labelled = 0;
    for (std::size_t i = 0; i < n; ++i) {
      left += goes_left[i];
      labelled += goes_left[i] & labels_[i];
    }
    lanes[0] += left - labelled;
    lanes[1] += labelled;
    return;
  }
  const Adder adder{labels_, q_, weights_};
  for (std::size_t i = 0; i < n; ++i) {
    if (goes_left[i] == 0) {
      continue;
    }
    adder(lanes.data(), i);
    if (squares != nullptr) {
      const std::uint32_t weight = weights_ == nullptr ? 1u : weights_[i];
      *squares += static_cast<Wide>(weight) * static_cast<Wide>(q_[i] * q_[i]);
    }
  }
}

std::optional<Extremes> Scanner::extremes(std::uint32_t attribute) {
  const Column& column = table_.column(attribute);
  if (scratch_.values.size() < rows_.size()) {
    scratch_.values.resize(rows_.size());
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    scratch_.values[i] = column.at(rows_[i]);
  }
  const Range range = range_of(scratch_.values.data(), rows_.size());
  if (range.least > range.greatest || (range.least == range.greatest && !range.has_missing)) {
    return std::nullopt;
  }
  Extremes extremes{range.least, range.greatest, 0, 0, 0};
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const std::int64_t weight = weights_ == nullptr ? 1 : weights_[i];
    const float x = scratch_.values[i];
    extremes.least_weight += x == range.least ? weight : 0;
    extremes.greatest_weight += x == range.greatest ? weight : 0;
    extremes.missing_weight += std::isnan(x) ? weight : 0;
  }
  return extremes;
}

std::optional<RandomPick> Scanner::random(std::uint64_t key,
                                          std::vector<std::uint64_t>* known_constant) {
  scratch_.order.start(key, spec_.n_columns, known_constant);
  while (const auto attribute = scratch_.order.next()) {
    if (const auto found = extremes(*attribute)) {
      return RandomPick{*attribute, *found};
    }
    if (known_constant != nullptr) {
      set(*known_constant, *attribute);
    }
  }
  return std::nullopt;
}

}  // namespace letheon::forest
