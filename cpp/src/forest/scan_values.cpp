// Columns of many values: finding those of lowest priority, and counting between them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "letheon/forest/kernels.hpp"
#include "letheon/forest/scan.hpp"
#include "tally.hpp"

namespace letheon::forest {

namespace {

constexpr std::uint64_t kAllPriorities = std::uint64_t{1} << 32;

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

}  // namespace

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

// A row with a kept value is among those whose priority is low enough.
void Scanner::weigh_copies(const std::uint32_t* weights, std::size_t first) {
  Draft& draft = scratch_.draft;
  const float* const x = scratch_.values.data();
  const auto& by_value = scratch_.by_value;
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

  const auto first = static_cast<std::uint32_t>(draft.values.size());
  take_found();
  const auto m = static_cast<std::uint32_t>(scratch_.found.size());
  if (adder.weights != nullptr) {
    weigh_copies(adder.weights, first);
  }
  const bool is_category = spec_.is_category(attribute);
  count_left(adder, n, first, is_category);
  draft.lists.push_back({attribute, first, m, truncated, has_missing, is_category});
  return true;
}

// The kept values, by priority, go to the draft; ascending, they are the edges of cells.
void Scanner::take_found() {
  Draft& draft = scratch_.draft;
  const std::size_t first = draft.values.size();
  auto& by_value = scratch_.by_value;  // (value, entry)
  by_value.clear();
  for (std::size_t k = 0; k < scratch_.found.size(); ++k) {
    const auto bits = static_cast<std::uint32_t>(scratch_.found[k]);
    draft.values.push_back(std::bit_cast<float>(bits));
    draft.copies.push_back(scratch_.copies[k]);
    by_value.push_back(std::uint64_t{ordered_bits(bits)} << 32 | k);
  }
  std::ranges::sort(by_value);
  scratch_.edges.resize(by_value.size());
  for (std::size_t k = 0; k < by_value.size(); ++k) {
    scratch_.edges[k] = draft.values[first + (by_value[k] & 0xFFFFFFFFu)];
  }
}

// Lanes of what lies left of each kept value, the value included; for categories, of the value.
void Scanner::count_left(const Adder& adder, std::size_t n, std::size_t first, bool is_category) {
  Draft& draft = scratch_.draft;
  const std::uint32_t n_lanes = table_.n_lanes();
  const std::size_t m = scratch_.edges.size();
  scratch_.cells.resize(std::max(scratch_.cells.size(), n));
  count_edges_below(scratch_.values.data(), n, scratch_.edges.data(), m, scratch_.cells.data());
  // Cell k holds what lies above edge k - 1, edge k included; for categories, edge k alone.
  for (std::size_t i = 0; is_category && i < n; ++i) {
    std::uint32_t& cell = scratch_.cells[i];
    cell = cell < m && scratch_.edges[cell] == scratch_.values[i] ? cell
                                                                  : static_cast<std::uint32_t>(m);
  }
  auto& tallies = scratch_.tallies;
  tallies.assign((m + 1) * n_lanes, 0);
  const std::uint32_t* const below = scratch_.cells.data();
  tally(n, n_lanes, m + 1, adder, tallies.data(), [=](std::size_t i) { return below[i]; });
  for (std::size_t k = n_lanes; !is_category && k < m * n_lanes; ++k) {
    tallies[k] += tallies[k - n_lanes];
  }
  draft.left.resize((first + m) * n_lanes);
  for (std::size_t k = 0; k < m; ++k) {
    const std::size_t entry = first + (scratch_.by_value[k] & 0xFFFFFFFFu);
    std::copy_n(tallies.data() + k * n_lanes, n_lanes, draft.left.data() + entry * n_lanes);
  }
}

}  // namespace letheon::forest
