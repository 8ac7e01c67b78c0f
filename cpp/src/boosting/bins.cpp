#include "letheon/boosting/bins.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace letheon::boosting {

namespace {

struct ValueWeight {
  float value;
  std::uint64_t weight;
};

// The distinct values of a column, ascending, NaN apart.
class DistinctValues {
 public:
  std::span<const ValueWeight> collect(const Column& column, std::span<const Slot> rows,
                                       std::span<const std::uint32_t> weights) {
    distinct_.clear();
    if (column.is_coded()) {
      count_codes(column, rows, weights);
    } else {
      sort_values(column, rows, weights);
    }
    return distinct_;
  }

  // Fills the bins of the rows, in the order of the values that were collected last.
  void fill_sorted(std::span<const float> edges, std::uint8_t* out) const noexcept {
    std::size_t bin = 0;
    for (const std::uint64_t key : keys_) {
      bin += edges[bin] < value_of(static_cast<std::uint32_t>(key >> 32)) ? 1 : 0;
      out[key & 0xFFFFFFFFu] = static_cast<std::uint8_t>(bin + 1);
    }
  }

 private:
  void count_codes(const Column& column, std::span<const Slot> rows,
                   std::span<const std::uint32_t> weights) {
    // In parts: a count waits for the one before it, and most rows have the same code.
    std::array<std::array<std::uint64_t, 256>, 4> counts{};
    column.read_codes([&](auto code_of) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        counts[i % 4][code_of(rows[i])] += weights[i];
      }
    });
    for (std::size_t code = 0; code < column.table().size(); ++code) {
      const std::uint64_t count =
          counts[0][code] + counts[1][code] + counts[2][code] + counts[3][code];
      if (count > 0) {
        distinct_.push_back({column.table()[code], count});
      }
    }
  }

  void sort_values(const Column& column, std::span<const Slot> rows,
                   std::span<const std::uint32_t> weights) {
    keys_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const float x = column.values()[rows[i]];
      if (!std::isnan(x)) {
        keys_.push_back(std::uint64_t{order_of(x)} << 32 | i);
      }
    }
    sort_keys();
    std::uint64_t last = ~std::uint64_t{0};
    for (const std::uint64_t key : keys_) {
      if (key >> 32 != last) {
        last = key >> 32;
        distinct_.push_back({value_of(static_cast<std::uint32_t>(last)), 0});
      }
      distinct_.back().weight += weights[key & 0xFFFFFFFFu];
    }
  }

  // Sorts by the value, 11 bits at a time.
  void sort_keys() {
    constexpr std::size_t kBits = 11;
    constexpr std::size_t kFew = 256;
    if (keys_.size() < kFew) {
      std::ranges::sort(keys_);
      return;
    }
    buffer_.resize(keys_.size());
    for (std::size_t shift = 32; shift < 64; shift += kBits) {
      std::array<std::uint32_t, 1 << kBits> places{};
      const auto digit = [&](std::uint64_t key) { return key >> shift & ((1 << kBits) - 1); };
      for (const std::uint64_t key : keys_) {
        ++places[digit(key)];
      }
      std::uint32_t place = 0;
      for (std::uint32_t& count : places) {
        place += std::exchange(count, place);
      }
      for (const std::uint64_t key : keys_) {
        buffer_[places[digit(key)]++] = key;
      }
      keys_.swap(buffer_);
    }
  }

  // Integers in the order of the floats.
  static std::uint32_t order_of(float x) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  static float value_of(std::uint32_t order) noexcept {
    return std::bit_cast<float>((order & 0x80000000u) != 0 ? order & 0x7FFFFFFFu : ~order);
  }

  std::vector<ValueWeight> distinct_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> buffer_;
};

// Values of at least the mean weight of a bin get a bin of their own; the others are cut into bins
// of equal weight.
std::vector<float> cut_bins(std::span<const ValueWeight> values, std::size_t max_bins) {
  std::vector<float> edges;
  if (values.size() <= max_bins) {
    for (const ValueWeight& value : values) {
      edges.push_back(value.value);
    }
    return edges;
  }
  std::uint64_t rest = 0;
  for (const ValueWeight& value : values) {
    rest += value.weight;
  }
  const std::uint64_t mean = rest / max_bins + 1;
  std::uint64_t n_left = max_bins;
  for (const ValueWeight& value : values) {
    if (value.weight >= mean) {
      rest -= value.weight;
      --n_left;
    }
  }
  std::uint64_t wanted = rest / std::max<std::uint64_t>(n_left, 1) + 1;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool heavy = values[i].weight >= mean;
    const bool next_heavy = i + 1 < values.size() && values[i + 1].weight >= mean;
    filled += heavy ? 0 : values[i].weight;
    if (heavy || filled >= wanted || next_heavy || i + 1 == values.size()) {
      edges.push_back(values[i].value);
      if (!heavy) {
        rest -= filled;
        n_left -= n_left > 1 ? 1 : 0;
        wanted = rest / std::max<std::uint64_t>(n_left, 1) + 1;
      }
      filled = 0;
    }
  }
  // Light values between heavy ones can make some bins too many: the last ones become one.
  if (edges.size() > max_bins) {
    edges[max_bins - 1] = edges.back();
    edges.resize(max_bins);
  }
  return edges;
}

// The most frequent categories, ties by the bits of the value; in ascending order.
std::vector<float> choose_categories(std::span<const ValueWeight> values, std::size_t max_bins) {
  std::vector<ValueWeight> order(values.begin(), values.end());
  std::ranges::sort(order, [](const ValueWeight& a, const ValueWeight& b) {
    return a.weight != b.weight ? a.weight > b.weight
                                : std::bit_cast<std::uint32_t>(a.value) <
                                      std::bit_cast<std::uint32_t>(b.value);
  });
  order.resize(std::min(order.size(), max_bins));
  std::vector<float> edges;
  for (const ValueWeight& value : order) {
    edges.push_back(value.value);
  }
  std::ranges::sort(edges);
  return edges;
}

std::uint8_t bin_of(const BinnedColumn& column, float x) noexcept {
  if (std::isnan(x)) {
    return 0;
  }
  const auto at = std::ranges::lower_bound(column.edges, x);
  if (column.categorical && (at == column.edges.end() || *at != x)) {
    return static_cast<std::uint8_t>(column.n_bins - 1);
  }
  return static_cast<std::uint8_t>(1 + (at - column.edges.begin()));
}

void fill_bins(const BinnedColumn& binned, const Column& column, std::span<const Slot> rows,
               std::uint8_t* out) {
  if (!column.is_coded()) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[i] = bin_of(binned, column.values()[rows[i]]);
    }
    return;
  }
  std::array<std::uint8_t, 256> bins{};
  for (std::size_t code = 0; code < column.table().size(); ++code) {
    bins[code] = binned.edges.empty() ? std::uint8_t{0} : bin_of(binned, column.table()[code]);
  }
  column.read_codes([&](auto code_of) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[i] = bins[code_of(rows[i])];
    }
  });
}

// The bin of a value, or of missing ones, with at least half of the weight, if there is one.
std::uint32_t usual_bin(const BinnedColumn& column, std::span<const ValueWeight> values,
                        std::uint64_t total) {
  std::uint64_t missing = total;
  for (const ValueWeight& value : values) {
    if (2 * value.weight >= total) {
      return bin_of(column, value.value);
    }
    missing -= value.weight;
  }
  return 2 * missing >= total ? 0 : BinnedColumn::kNone;
}

}  // namespace

BinnedRows::BinnedRows(const Spec& spec, const Table& table, std::span<const Slot> rows)
    : n_rows(rows.size()), columns(spec.n_columns), bins_(spec.n_columns * rows.size()) {
  for (const Slot slot : rows) {
    weights.push_back(table.weight(slot));
  }
  const auto total = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  DistinctValues distinct;
  for (std::uint32_t j = 0; j < spec.n_columns; ++j) {
    BinnedColumn& column = columns[j];
    const auto values = distinct.collect(table.column(j), rows, weights);
    column.categorical = spec.categorical(j);
    column.edges = column.categorical ? choose_categories(values, spec.max_bins - 1)
                                      : cut_bins(values, spec.max_bins);
    column.n_bins =
        static_cast<std::uint32_t>(column.edges.size() + (column.categorical ? 2 : 1));
    column.first = static_cast<std::uint32_t>(histogram_size);
    histogram_size += column.n_bins;
    std::uint8_t* const bins = bins_.data() + j * n_rows;
    if (table.column(j).is_coded() || column.categorical) {
      fill_bins(column, table.column(j), rows, bins);
    } else {
      distinct.fill_sorted(column.edges, bins);  // missing values stay 0
    }
    column.usual = usual_bin(column, values, total);
  }
  // One more is written than is kept. Memory that is not written costs nothing.
  entries = std::make_unique_for_overwrite<std::uint32_t[]>(n_rows * spec.n_columns + 1);
  std::uint32_t n_entries = 0;
  for (std::size_t i = 0; i < n_rows; ++i) {
    begins.push_back(n_entries);
    for (std::uint32_t j = 0; j < spec.n_columns; ++j) {
      const std::uint32_t bin = bins_[j * n_rows + i];
      entries[n_entries] = columns[j].first + bin;
      n_entries += bin != columns[j].usual ? 1 : 0;
    }
  }
  begins.push_back(n_entries);
}

}  // namespace letheon::boosting
