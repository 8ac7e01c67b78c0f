#include "letheon/forest/scan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "letheon/forest/kernels.hpp"
#include "letheon/forest/keys.hpp"
#include "tally.hpp"

namespace letheon::forest {

namespace {

bool get(const std::vector<std::uint64_t>& bits, std::uint32_t index) noexcept {
  return (bits[index / 64] >> (index % 64) & 1) != 0;
}

void set(std::vector<std::uint64_t>& bits, std::uint32_t index) noexcept {
  bits[index / 64] |= std::uint64_t{1} << (index % 64);
}

}  // namespace

void AttributeOrder::start(std::uint64_t key, const Spec& spec,
                           const std::vector<std::uint64_t>* known_constant) {
  heap_.clear();
  for (std::uint32_t a = 0; a < spec.n_columns; ++a) {
    if (known_constant == nullptr || !get(*known_constant, a)) {
      heap_.emplace_back(draw(key, Use::order, spec.column_key(a)), a);
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
  scratch_.order.start(key, spec_, known_constant);
  while (scratch_.draft.lists.size() < spec_.max_features) {
    const auto attribute = scratch_.order.next();
    if (!attribute) {
      return;
    }
    const std::uint64_t threshold_key = draw(key, Use::threshold, spec_.column_key(*attribute));
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

// One of the categories in scratch.values, that of lowest priority, against the others.
Extremes Scanner::category_extremes(std::uint64_t key) const noexcept {
  constexpr float kOthers = std::numeric_limits<float>::infinity();
  Extremes extremes{kOthers, kOthers, 0, 0, 0};
  std::int64_t present = 0;
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const std::int64_t weight = weights_ == nullptr ? 1 : weights_[i];
    const float x = scratch_.values[i];
    if (std::isnan(x)) {
      extremes.missing_weight += weight;
      continue;
    }
    present += weight;
    if (const std::uint64_t found = priority(key, x); found < lowest) {
      lowest = found;
      extremes.least = x;
      extremes.least_weight = 0;
    }
    extremes.least_weight += x == extremes.least ? weight : 0;
  }
  extremes.greatest_weight = present - extremes.least_weight;
  if (extremes.greatest_weight == 0) {
    extremes.greatest = extremes.least;
    extremes.greatest_weight = extremes.least_weight;
  }
  return extremes;
}

std::optional<Extremes> Scanner::extremes(std::uint32_t attribute, std::uint64_t threshold_key) {
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
  if (spec_.is_category(attribute)) {
    return category_extremes(threshold_key);
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
  scratch_.order.start(key, spec_, known_constant);
  while (const auto attribute = scratch_.order.next()) {
    const std::uint64_t threshold_key = draw(key, Use::threshold, spec_.column_key(*attribute));
    if (const auto found = extremes(*attribute, threshold_key)) {
      return RandomPick{*attribute, *found};
    }
    if (known_constant != nullptr) {
      set(*known_constant, *attribute);
    }
  }
  return std::nullopt;
}

}  // namespace letheon::forest
