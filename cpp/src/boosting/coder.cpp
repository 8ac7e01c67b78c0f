#include "letheon/boosting/coder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "letheon/common/clones.hpp"

namespace letheon::boosting {

namespace {

constexpr std::uint8_t kOther = 255;  // a category that no split tests
constexpr std::size_t kWidth = 64;
constexpr std::size_t kPlanes = kMostLeaves / 8;

typedef std::uint8_t ByteVector __attribute__((vector_size(kWidth)));

LETHEON_INLINE void load(const std::uint8_t* place, ByteVector& vector) noexcept {
  std::memcpy(&vector, place, kWidth);
}

LETHEON_INLINE void store(std::uint8_t* place, const ByteVector& vector) noexcept {
  std::memcpy(place, &vector, kWidth);
}

// out[i] = 1 + number of ascending edges below x[i]; 0 for NaN.
LETHEON_VECTOR
void count_edges(const float* x, const float* edges, std::size_t n_edges,
                 std::uint8_t* out) noexcept {
  constexpr std::size_t kTogether = 32;
  for (std::size_t i = 0; i < kBlockRows; i += kTogether) {
    std::int32_t below[kTogether];
    for (std::size_t b = 0; b < kTogether; ++b) {
      below[b] = x[i + b] == x[i + b] ? 1 : 0;
    }
    for (std::size_t j = 0; j < n_edges; ++j) {
      for (std::size_t b = 0; b < kTogether; ++b) {
        below[b] += edges[j] < x[i + b] ? 1 : 0;
      }
    }
    for (std::size_t b = 0; b < kTogether; ++b) {
      out[i + b] = static_cast<std::uint8_t>(below[b]);
    }
  }
}

// out[i] = places[codes[i]] of columns with this many values at most; all other codes are those of
// missing values, whose place is 0.
constexpr std::size_t kFewCodes = 8;

LETHEON_VECTOR
void look_up(const std::uint8_t* codes, const std::uint8_t* places, std::size_t n_values,
             std::uint8_t* out) noexcept {
  for (std::size_t i = 0; i < kBlockRows; i += kWidth) {
    ByteVector values;
    ByteVector found{};
    load(codes + i, values);
    for (std::size_t code = 0; code < n_values; ++code) {
      const auto number = static_cast<std::uint8_t>(code);
      found |= static_cast<ByteVector>(values == number) & places[code];
    }
    store(out + i, found);
  }
}

// Rows that go right lose the leaves [first, middle). A missing value is 0, which is below every
// place: where it goes right, 1 is subtracted, and it becomes the largest byte.
template <bool kCategorical>
LETHEON_INLINE void apply_test(const std::uint8_t* x, std::uint8_t place, bool missing_left,
                               std::size_t first, std::size_t middle,
                               std::uint8_t (&planes)[kPlanes][kBlockRows]) noexcept {
  const auto lowest = static_cast<std::uint8_t>(missing_left ? 0 : 1);
  const auto highest = static_cast<std::uint8_t>(place - lowest);
  const auto side = static_cast<std::uint8_t>(missing_left ? 255 : 0);
  for (std::size_t plane = first / 8; plane * 8 < middle; ++plane) {
    const std::size_t low = std::max(first, plane * 8) - plane * 8;
    const std::size_t high = std::min(middle, plane * 8 + 8) - plane * 8;
    const auto kept = static_cast<std::uint8_t>(~((1u << high) - (1u << low)));
    std::uint8_t* const bits = planes[plane];
    for (std::size_t i = 0; i < kBlockRows; i += kWidth) {
      ByteVector values;
      ByteVector left;
      ByteVector leaves;
      load(x + i, values);
      load(bits + i, leaves);
      if constexpr (kCategorical) {
        left = static_cast<ByteVector>(values == place) |
               (static_cast<ByteVector>(values == 0) & side);
      } else {
        left = static_cast<ByteVector>(values - lowest <= highest);
      }
      store(bits + i, leaves & (left | kept));
    }
  }
}

// leaves[i] = number of the lowest leaf of row i.
LETHEON_INLINE void lowest_leaves(const std::uint8_t (&planes)[kPlanes][kBlockRows],
                                  std::size_t n_planes, std::uint8_t* leaves) noexcept {
  for (std::size_t i = 0; i < kBlockRows; i += kWidth) {
    ByteVector bits;
    load(planes[n_planes - 1] + i, bits);
    const auto last = static_cast<std::uint8_t>(8 * (n_planes - 1));
    ByteVector number = ByteVector{} + last;
    for (std::size_t plane = n_planes - 1; plane-- > 0;) {
      ByteVector candidate;
      load(planes[plane] + i, candidate);
      const auto base = static_cast<std::uint8_t>(8 * plane);
      const ByteVector empty = static_cast<ByteVector>(candidate == 0);
      bits = (bits & empty) | candidate;
      number = (number & empty) | (~empty & base);
    }
    const ByteVector lowest = bits & -bits;
    number += static_cast<ByteVector>((lowest & 0xAA) != 0) & 1;
    number += static_cast<ByteVector>((lowest & 0xCC) != 0) & 2;
    number += static_cast<ByteVector>((lowest & 0xF0) != 0) & 4;
    store(leaves + i, number);
  }
}

}  // namespace

std::uint8_t Coder::UsedColumn::place_of(float x) const noexcept {
  if (std::isnan(x)) {
    return 0;
  }
  const auto at = std::ranges::lower_bound(thresholds, x);
  if (categorical && (at == thresholds.end() || *at != x)) {
    return kOther;
  }
  return static_cast<std::uint8_t>(1 + (at - thresholds.begin()));
}

Coder::Coder(std::span<const Tree> trees) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const Tree& tree : trees) {
    for (const Split& split : tree.splits) {
      numbers.emplace(split.column, 0);
    }
  }
  for (auto& [column, number] : numbers) {
    number = static_cast<std::uint32_t>(columns_.size());
    columns_.push_back({column, false, {}, {}});
  }
  for (const Tree& tree : trees) {
    for (const Split& split : tree.splits) {
      UsedColumn& used = columns_[numbers[split.column]];
      used.categorical = split.categorical;
      used.thresholds.push_back(split.threshold);
    }
  }
  for (UsedColumn& used : columns_) {
    std::ranges::sort(used.thresholds);
    const auto repeated = std::ranges::unique(used.thresholds);
    used.thresholds.erase(repeated.begin(), repeated.end());
  }
  for (const Tree& tree : trees) {
    auto& tests = tests_.emplace_back();
    for (const Split& split : tree.splits) {
      const std::uint32_t number = numbers[split.column];
      tests.push_back({number, columns_[number].place_of(split.threshold), split.categorical,
                       split.missing_left, split.first, split.middle});
    }
  }
}

void Coder::place_block(const UsedColumn& used, const float* x, std::uint8_t* out) const noexcept {
  constexpr std::size_t kFew = 128;
  if (!used.categorical && used.thresholds.size() <= kFew) {
    count_edges(x, used.thresholds.data(), used.thresholds.size(), out);
    return;
  }
  for (std::size_t i = 0; i < kBlockRows; ++i) {
    out[i] = used.place_of(x[i]);
  }
}

void Coder::read_codes(const Table& table) {
  for (UsedColumn& used : columns_) {
    const auto values = table.column(used.column).table();  // none of a column of floats
    used.places.fill(0);
    for (std::size_t code = 0; code < values.size(); ++code) {
      used.places[code] = used.place_of(values[code]);
    }
  }
}

void Coder::read(const Table& table, std::size_t begin, std::size_t n, Scratch& scratch) const {
  scratch.places.resize(columns_.size() * kBlockRows);
  scratch.values.resize(kBlockRows);
  for (std::size_t j = 0; j < columns_.size(); ++j) {
    std::uint8_t* const out = scratch.places.data() + j * kBlockRows;
    const Column& column = table.column(columns_[j].column);
    if (column.is_coded() && column.table().size() <= kFewCodes && n == kBlockRows) {
      look_up(column.codes() + begin, columns_[j].places.data(), column.table().size(), out);
    } else if (column.is_coded()) {
      const auto& places = columns_[j].places;
      const std::uint8_t* const codes = column.codes() + begin;
      for (std::size_t i = 0; i < n; ++i) {
        out[i] = places[codes[i]];
      }
    } else if (n == kBlockRows) {
      place_block(columns_[j], column.values() + begin, out);
    } else {
      std::copy_n(column.values() + begin, n, scratch.values.data());
      place_block(columns_[j], scratch.values.data(), out);
    }
  }
}

void Coder::read(const MatrixView& X, std::size_t begin, std::size_t n, Scratch& scratch) const {
  scratch.places.resize(columns_.size() * kBlockRows);
  scratch.values.resize(kBlockRows);
  for (std::size_t j = 0; j < columns_.size(); ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      scratch.values[i] = X.at(begin + i, columns_[j].column);
    }
    place_block(columns_[j], scratch.values.data(), scratch.places.data() + j * kBlockRows);
  }
}

LETHEON_VECTOR
void Coder::find_leaves(std::size_t t, const Scratch& scratch,
                        std::uint8_t* leaves) const noexcept {
  alignas(kWidth) std::uint8_t planes[kPlanes][kBlockRows];
  const std::size_t n_planes = tests_[t].size() / 8 + 1;  // there is one leaf more than splits
  std::memset(planes, 255, n_planes * kBlockRows);
  for (const Test& test : tests_[t]) {
    const std::uint8_t* const x = scratch.places.data() + test.used * kBlockRows;
    if (test.categorical) {
      apply_test<true>(x, test.place, test.missing_left, test.first, test.middle, planes);
    } else {
      apply_test<false>(x, test.place, test.missing_left, test.first, test.middle, planes);
    }
  }
  lowest_leaves(planes, n_planes, leaves);
}

}  // namespace letheon::boosting
