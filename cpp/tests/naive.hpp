// The rule of a node, written down a second time: slow, plain, and from the definition alone.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "letheon/forest/block.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon::testing {

using Tally = std::vector<std::int64_t>;
using Rows = std::span<const letheon::Slot>;

inline std::uint64_t naive_draw(std::uint64_t key, std::uint64_t use, std::uint64_t about) {
  return mix64(key, use * (std::uint64_t{1} << 32) + about);
}

inline void add_row(const letheon::Table& table, letheon::Slot slot, Tally& tally) {
  const std::int64_t weight = table.weight(slot);
  if (table.is_regression()) {
    tally[0] += weight;
    tally[1] += weight * table.q(slot);
  } else {
    tally[table.label(slot)] += weight;
  }
}

inline Tally tally_of(const letheon::Table& table, Rows rows) {
  Tally tally(table.n_lanes(), 0);
  for (const letheon::Slot slot : rows) {
    add_row(table, slot, tally);
  }
  return tally;
}

inline std::int64_t weight_of(const letheon::Table& table, const Tally& tally) {
  std::int64_t total = 0;
  for (const std::int64_t lane : tally) {
    total += lane;
  }
  return table.is_regression() ? tally[0] : total;
}

// log2 of x with 24 fractional bits.
inline std::int64_t naive_log2(std::uint64_t x) {
  std::int64_t e = 0;
  while ((x >> (e + 1)) != 0) {
    ++e;
  }
  std::uint64_t z = x << (31 - e);
  std::int64_t fraction = 0;
  for (int k = 0; k < 24; ++k) {
    z = (z * z) >> 31;
    const bool bit = z >= (std::uint64_t{1} << 32);
    z = bit ? z >> 1 : z;
    fraction = fraction * 2 + (bit ? 1 : 0);
  }
  return e * (1 << 24) + fraction;
}

inline std::int64_t naive_x_log_x(std::int64_t x) {
  return x == 0 ? 0 : x * naive_log2(static_cast<std::uint64_t>(x));
}

// Whether the first of two splits is better. Each side is a tally.
struct NaiveScore {
  double real = 0.0;
  std::int64_t whole = 0;

  [[nodiscard]] bool operator>(const NaiveScore& other) const {
    return real > other.real || whole > other.whole;
  }
};

inline NaiveScore naive_score(const letheon::Table& table, forest::Criterion criterion,
                              const Tally& left, const Tally& right) {
  NaiveScore score;
  for (const Tally* side : {&left, &right}) {
    const std::int64_t n = weight_of(table, *side);
    if (criterion == forest::Criterion::squared_error) {
      const auto sum = static_cast<double>((*side)[1]);
      score.real += (sum * sum) / static_cast<double>(n);
      continue;
    }
    std::int64_t squares = 0;
    for (const std::int64_t lane : *side) {
      squares += lane * lane;
      score.whole += criterion == forest::Criterion::entropy ? naive_x_log_x(lane) : 0;
    }
    if (criterion == forest::Criterion::gini) {
      score.real += static_cast<double>(squares) / static_cast<double>(n);
    } else {
      score.whole -= naive_x_log_x(n);
    }
  }
  return score;
}

// All distinct values of an attribute in a node, by ascending priority.
struct NaiveList {
  struct Value {
    float value;
    std::uint32_t priority;
    std::int64_t copies;
    Tally left;
  };
  std::uint32_t attribute = 0;
  std::vector<Value> values;
  Tally missing;
  bool has_missing = false;

  [[nodiscard]] bool varies() const {
    return values.size() > 1 || (values.size() == 1 && has_missing);
  }
};

inline NaiveList naive_list(const letheon::Table& table, Rows rows, std::uint32_t attribute,
                            std::uint64_t key, bool is_category = false) {
  NaiveList list{.attribute = attribute, .values = {}, .missing = Tally(table.n_lanes(), 0)};
  std::map<float, Tally> tallies;
  for (const letheon::Slot slot : rows) {
    const float x = table.column(attribute).at(slot);
    if (std::isnan(x)) {
      add_row(table, slot, list.missing);
      list.has_missing = true;
    } else {
      add_row(table, slot, tallies.try_emplace(x, table.n_lanes(), 0).first->second);
    }
  }
  const std::uint64_t threshold_key = naive_draw(key, 2, attribute);
  Tally sum(table.n_lanes(), 0);
  for (const auto& [value, tally] : tallies) {
    for (std::size_t lane = 0; lane < sum.size(); ++lane) {
      sum[lane] = is_category ? tally[lane] : sum[lane] + tally[lane];
    }
    list.values.push_back({value, mix32(threshold_key, std::bit_cast<std::uint32_t>(value)),
                           weight_of(table, tally), sum});
  }
  std::ranges::sort(list.values, {}, &NaiveList::Value::priority);
  return list;
}

inline std::vector<std::uint32_t> naive_order(std::uint64_t key, std::uint32_t n_columns) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
  for (std::uint32_t a = 0; a < n_columns; ++a) {
    order.emplace_back(naive_draw(key, 1, a), a);
  }
  std::ranges::sort(order);
  std::vector<std::uint32_t> attributes;
  for (const auto& [hash, attribute] : order) {
    attributes.push_back(attribute);
  }
  return attributes;
}

// The lists of the first `n` attributes that vary.
inline std::vector<NaiveList> naive_lists(const letheon::Table& table, Rows rows, std::uint64_t key,
                                          std::size_t n, const forest::Spec& spec = {}) {
  std::vector<NaiveList> lists;
  for (const std::uint32_t attribute : naive_order(key, table.n_columns())) {
    if (lists.size() == n) {
      break;
    }
    NaiveList list = naive_list(table, rows, attribute, key, spec.is_category(attribute));
    if (list.varies()) {
      lists.push_back(std::move(list));
    }
  }
  return lists;
}

// The best split of a greedy node that is not final.
inline std::optional<forest::Verdict> naive_split(const letheon::Table& table, Rows rows,
                                                  std::uint64_t key, const forest::Spec& spec) {
  const Tally totals = tally_of(table, rows);
  std::optional<forest::Verdict> best;
  NaiveScore best_score;
  for (const NaiveList& list : naive_lists(table, rows, key, spec.max_features, spec)) {
    const float greatest = std::ranges::max(list.values, {}, &NaiveList::Value::value).value;
    std::uint32_t n_valid = 0;
    for (const auto& candidate : list.values) {
      const bool is_last = candidate.value == greatest && !spec.is_category(list.attribute);
      if (n_valid == spec.n_thresholds || (is_last && !list.has_missing)) {
        continue;
      }
      ++n_valid;
      for (const bool missing_left : {false, true}) {
        Tally left = candidate.left;
        Tally right(totals.size());
        for (std::size_t lane = 0; lane < left.size(); ++lane) {
          left[lane] += missing_left ? list.missing[lane] : 0;
          right[lane] = totals[lane] - left[lane];
        }
        const std::int64_t least = std::max<std::int64_t>(1, spec.min_samples_leaf);
        const bool eligible = weight_of(table, left) >= least && weight_of(table, right) >= least;
        if (!eligible || (missing_left && !list.has_missing)) {
          continue;
        }
        const NaiveScore score = naive_score(table, spec.criterion, left, right);
        if (!best || score > best_score) {
          best = forest::Verdict{forest::Verdict::Kind::split, list.attribute, candidate.value,
                                 list.has_missing, missing_left,
                                 spec.is_category(list.attribute)};
          best_score = score;
        }
      }
    }
  }
  return best;
}

// Whether the core's verdict is the naive one.
inline bool agree(const std::optional<forest::Verdict>& wanted, const forest::Verdict& given) {
  if (!wanted) {
    return given.kind == forest::Verdict::Kind::none;
  }
  return given.kind == forest::Verdict::Kind::split && given.attribute == wanted->attribute &&
         given.threshold == wanted->threshold && given.saw_missing == wanted->saw_missing &&
         given.is_category == wanted->is_category &&
         given.missing_left == wanted->missing_left;
}

}  // namespace letheon::testing
