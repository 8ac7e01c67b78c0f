#include "letheon/boosting/coder.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "letheon/common/clones.hpp"

namespace letheon::boosting {

namespace {

constexpr std::uint8_t kOther = 255;  // a category that no split tests
constexpr std::size_t kWidth = 64;
constexpr std::size_t kGroups = kBlockRows / kWidth;
constexpr std::size_t kPlanes = 6;  // bits of the number of a leaf

// One byte per row of a group; or one bit per row of a block: row g * kWidth + i is bit g of byte i.
typedef std::uint8_t ByteVector __attribute__((vector_size(kWidth)));
typedef std::uint64_t Words __attribute__((vector_size(kWidth)));
static_assert(kGroups == 8 && kMostLeaves <= 1u << kPlanes);

LETHEON_INLINE void load(const std::uint8_t* place, ByteVector& vector) noexcept {
  std::memcpy(&vector, place, kWidth);
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
    std::memcpy(out + i, &found, kWidth);
  }
}

// The set of rows of a block whose bytes pass a test; compare(values, left) sets the bytes of left.
template <typename Compare>
LETHEON_INLINE void select_rows(const std::uint8_t* x, Compare compare, ByteVector& rows) noexcept {
  rows = ByteVector{};
  for (std::size_t group = 0; group < kGroups; ++group) {
    ByteVector values;
    ByteVector left;
    load(x + group * kWidth, values);
    compare(values, left);
    const auto bit = static_cast<std::uint8_t>(1u << group);
    rows |= left & bit;
  }
}

// Bit i of words[g] becomes bit g of byte i: a transposition of bytes, then of the bits of each
// eight of them.
LETHEON_VECTOR
void transpose_words(const std::uint64_t* words, std::uint8_t* out) noexcept {
  constexpr Words kShifts{0, 8, 16, 24, 32, 40, 48, 56};
  Words x{};
  for (std::size_t group = 0; group < kGroups; ++group) {
    x |= ((Words{} + words[group]) >> kShifts & 0xFF) << (8 * group);
  }
  Words moved = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= moved ^ (moved << 7);
  moved = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= moved ^ (moved << 14);
  moved = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  x ^= moved ^ (moved << 28);
  for (std::size_t k = 0; std::endian::native == std::endian::big && k < kGroups; ++k) {
    x[k] = __builtin_bswap64(x[k]);
  }
  std::memcpy(out, &x, kWidth);
}

// leaves[i] = number of the leaf of row i, whose bits are planes.
LETHEON_INLINE void join_planes(const ByteVector (&planes)[kPlanes],
                                std::uint8_t* leaves) noexcept {
  for (std::size_t group = 0; group < kGroups; ++group) {
    const auto bit = static_cast<std::uint8_t>(1u << group);
    ByteVector numbers{};
    for (std::size_t k = 0; k < kPlanes; ++k) {
      const auto worth = static_cast<std::uint8_t>(1u << k);
      numbers |= static_cast<ByteVector>((planes[k] & bit) != 0) & worth;
    }
    std::memcpy(leaves + group * kWidth, &numbers, kWidth);
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
                       split.missing_left, split.left, split.right});
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
  scratch.is_packed.resize(columns_.size());
  for (std::size_t j = 0; j < columns_.size(); ++j) {
    scratch.is_packed[j] = table.column(columns_[j].column).is_packed() ? 1 : 0;
    std::uint8_t* const out = scratch.places.data() + j * kBlockRows;
    const Column& column = table.column(columns_[j].column);
    if (column.is_packed()) {
      std::array<std::uint64_t, kGroups> words{};
      const std::size_t first = begin / Column::kWordRows;
      std::copy_n(column.words() + first, (n + Column::kWordRows - 1) / Column::kWordRows,
                  words.begin());
      transpose_words(words.data(), out);
    } else if (column.is_coded() && column.table().size() <= kFewCodes && n == kBlockRows) {
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
  scratch.is_packed.assign(columns_.size(), 0);
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
  ByteVector rows[kMostLeaves];  // of each split
  ByteVector planes[kPlanes] = {};
  rows[0] = ~ByteVector{};
  const auto send = [&](int child, const ByteVector& set) __attribute__((always_inline)) {
    if (child >= 0) {
      rows[child] = set;
      return;
    }
    const int leaf = -1 - child;
    for (std::size_t k = 0; k < kPlanes; ++k) {
      if ((leaf >> k & 1) != 0) {
        planes[k] |= set;
      }
    }
  };
  for (std::size_t split = 0; split < tests_[t].size(); ++split) {
    const Test& test = tests_[t][split];
    const std::uint8_t* const x = scratch.places.data() + test.used * kBlockRows;
    ByteVector left;
    if (scratch.is_packed[test.used] != 0) {
      const auto& places = columns_[test.used].places;
      const auto of_low = static_cast<std::uint8_t>(test.sends_left(places[0]) ? 255 : 0);
      const auto of_high = static_cast<std::uint8_t>(test.sends_left(places[1]) ? 255 : 0);
      ByteVector high;
      load(x, high);
      left = (~high & of_low) | (high & of_high);
    } else if (test.categorical) {
      const auto of_missing = static_cast<std::uint8_t>(test.missing_left ? 255 : 0);
      const auto compare = [&](const ByteVector& x_of, ByteVector& out) __attribute__((always_inline)) {
        out = static_cast<ByteVector>(x_of == test.place) |
              (static_cast<ByteVector>(x_of == 0) & of_missing);
      };
      select_rows(x, compare, left);
    } else {
      // A missing value is 0, which is below every place: where it goes right, 1 is subtracted, and
      // it becomes the largest byte.
      const auto lowest = static_cast<std::uint8_t>(test.missing_left ? 0 : 1);
      const auto highest = static_cast<std::uint8_t>(test.place - lowest);
      const auto compare = [=](const ByteVector& x_of, ByteVector& out) __attribute__((always_inline)) {
        out = static_cast<ByteVector>(x_of - lowest <= highest);
      };
      select_rows(x, compare, left);
    }
    send(test.left, rows[split] & left);
    send(test.right, rows[split] & ~left);
  }
  join_planes(planes, leaves);
}

}  // namespace letheon::boosting
