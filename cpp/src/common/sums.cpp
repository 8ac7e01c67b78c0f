#include "letheon/common/sums.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "natural.hpp"

namespace letheon::sums {
namespace {

constexpr std::int64_t kDigit = 0xFFFFFFFF;
constexpr int kSumUnit = -1074;
constexpr int kSquareUnit = 2 * kSumUnit;
constexpr int kLargestExponent = 1022;
// A row adds less than 2^52 to a chunk, and a chunk is below 2^33 after a carry.
constexpr std::size_t kRowsPerCarry = 2000;
constexpr std::size_t kRowsPerScan = 128;
constexpr const char* kInfinity =
    "Input X contains infinity or a value too large for dtype('float64').";

// Moves what exceeds 32 bits to the next chunk. The highest chunk that is not zero keeps its sign.
void carry_chunks(std::span<std::int64_t> chunks) noexcept {
  std::size_t top = chunks.size();
  while (top > 0 && chunks[top - 1] == 0) {
    --top;
  }
  for (std::size_t k = 0; k < top; ++k) {
    const std::int64_t chunk = chunks[k];
    const bool is_last = k + 1 == top;
    if (is_last && (k + 1 == chunks.size() || (-kDigit <= chunk && chunk <= kDigit))) {
      break;
    }
    chunks[k] = chunk & kDigit;
    chunks[k + 1] += chunk >> 32;
    if (is_last && chunks[k + 1] != 0) {
      ++top;
    }
  }
}

// A signed integer: its absolute value and its sign.
struct Signed {
  Natural size;
  bool is_negative;
};

Signed value_of(std::span<const std::int64_t> chunks) noexcept {
  std::size_t low = 0;
  while (low < chunks.size() && chunks[low] == 0) {
    ++low;
  }
  std::size_t top = chunks.size();
  while (top > low && chunks[top - 1] == 0) {
    --top;
  }
  // The sign of the value is that of the carry out of all digits.
  std::int64_t carry = 0;
  for (std::size_t k = low; k < top; ++k) {
    carry = (carry + chunks[k]) >> 32;
  }
  const bool is_negative = carry < 0;
  const std::int64_t sign = is_negative ? -1 : 1;
  Signed out{Natural(static_cast<int>(low)), is_negative};
  carry = 0;
  for (std::size_t k = low; k < top; ++k) {
    carry += sign * chunks[k];
    out.size.push(static_cast<std::uint32_t>(carry & kDigit));
    carry >>= 32;
  }
  while (carry != 0) {
    out.size.push(static_cast<std::uint32_t>(carry & kDigit));
    carry >>= 32;
  }
  out.size.trim();
  return out;
}

void write_bytes(std::span<const std::int64_t> chunks, std::uint8_t* out) noexcept {
  std::int64_t carry = 0;
  for (const std::int64_t chunk : chunks) {
    carry += chunk;
    for (int shift = 0; shift < 32; shift += 8) {
      *out++ = static_cast<std::uint8_t>(carry >> shift);
    }
    carry >>= 32;
  }
}

void read_bytes(const std::uint8_t* in, std::span<std::int64_t> chunks) noexcept {
  for (std::int64_t& chunk : chunks) {
    chunk = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      chunk |= static_cast<std::int64_t>(*in++) << shift;
    }
  }
  // The top digit has the sign, and the digits below it that only repeat the sign are dropped.
  std::size_t top = chunks.size() - 1;
  if (chunks[top] > kDigit / 2) {
    chunks[top] -= kDigit + 1;
  }
  while (top > 0 && chunks[top] == -1) {
    chunks[top] = 0;
    chunks[--top] -= kDigit + 1;
  }
}

bool has_infinity(const double* data, std::size_t size) noexcept {
  int n_infinite = 0;
  for (std::size_t k = 0; k < size; ++k) {
    n_infinite += std::abs(data[k]) == std::numeric_limits<double>::infinity() ? 1 : 0;
  }
  return n_infinite != 0;
}

// n * (sum of squares) - (sum)^2, in units of 2^-2148: the variance times n^2. Not negative for
// numbers that were added; zero otherwise.
Natural spread(const Natural& sum, const Natural& squares, std::uint64_t count) noexcept {
  const Natural left = squares * Natural::from(count);
  const Natural right = sum * sum;
  return left < right ? Natural(0) : left - right;
}

int scale_exponent(const Natural& spread, std::uint64_t count, std::uint64_t dither,
                   int step) noexcept {
  Natural base = Natural::from(count);
  const Natural power = Natural::from(power_of_two(dither));
  for (int k = 0; k < step; ++k) {
    base = base * power;
  }
  const Natural square = base * base;
  // sd >= 2^(e - g) (power / 2^63)^g  <=>  spread 2^-2148 >= square 2^(2 (e - g) - 126 g)
  const int shift = -kSquareUnit - 128 * step;
  int exponent = ((spread.bits() - square.bits() - shift) / 2 / step + 1) * step;
  while (spread < square.shifted(2 * exponent + shift)) {
    exponent -= step;
  }
  return std::clamp(exponent, -kLargestExponent, kLargestExponent);
}

// 2^grid * floor(sum / count / 2^grid + dither / 2^64), the sum in units of 2^-1074.
double rounded_mean(const Signed& sum, std::uint64_t count, std::uint64_t dither,
                    int grid) noexcept {
  const Natural n = Natural::from(count);
  const Natural offset = n * Natural::from(dither);
  const Natural scaled = sum.size.shifted(64 + kSumUnit - grid);
  // floor((floor(scaled) + offset) / (n * 2^64)), with the sign of the sum.
  if (!sum.is_negative) {
    return ((scaled.floor() + offset).shifted(-64).floor() / count).quotient.to_double(grid, false);
  }
  const Natural size = scaled.ceil();
  if (!(offset < size)) {
    return ((offset - size).shifted(-64).floor() / count).quotient.to_double(grid, false);
  }
  const Division steps = (size - offset).shifted(-64).ceil() / count;
  const Natural ceiling = steps.has_rest ? steps.quotient + Natural::from(1) : steps.quotient;
  return -ceiling.to_double(grid, false);
}

double limit(double value) noexcept {
  constexpr double kLargest = std::numeric_limits<double>::max();
  return std::clamp(value, -kLargest, kLargest);
}

double exact_mean(const Signed& sum, std::uint64_t count) noexcept {
  const Division mean = sum.size.shifted(128).floor() / count;
  const double value = mean.quotient.to_double(kSumUnit - 128, mean.has_rest);
  return sum.is_negative ? 0.0 - value : value;  // never -0.0
}

std::array<std::uint64_t, 64> make_roots() noexcept {
  // roots[k] = floor(2^(2^-(k + 1)) * 2^63), each from the one before by an integer square root.
  std::array<std::uint64_t, 64> roots{};
  Wide previous = Wide{1} << 64;
  for (std::uint64_t& root : roots) {
    const Wide square = previous << 63;
    Wide guess = 0;
    for (int bit = 63; bit >= 0; --bit) {
      const Wide next = guess | Wide{1} << bit;
      // 2^127 is below square; next * next fits 128 bits.
      guess = next * next <= square ? next : guess;
    }
    root = static_cast<std::uint64_t>(guess);
    previous = guess;
  }
  return roots;
}

}  // namespace

std::uint64_t power_of_two(std::uint64_t dither) noexcept {
  static const std::array<std::uint64_t, 64> kRoots = make_roots();
  std::uint64_t power = std::uint64_t{1} << 63;
  for (std::size_t k = 0; k < kRoots.size(); ++k) {
    if ((dither >> (63 - k) & 1) != 0) {
      power = static_cast<std::uint64_t>(Wide{power} * kRoots[k] >> 63);
    }
  }
  return power;
}

ColumnSums::ColumnSums(std::size_t n_columns)
    : counts_(n_columns), sums_(n_columns * kSumChunks), squares_(n_columns * kSquareChunks) {}

ColumnSums::ColumnSums(std::span<const std::int64_t> counts,
                       std::span<const std::uint8_t> sum_bytes,
                       std::span<const std::uint8_t> square_bytes)
    : ColumnSums(counts.size()) {
  if (sum_bytes.size() != sums_.size() * 4 || square_bytes.size() != squares_.size() * 4) {
    throw std::invalid_argument("the sums of a column have 272 bytes, its squares 536 bytes");
  }
  std::copy(counts.begin(), counts.end(), counts_.begin());
  for (std::size_t j = 0; j < n_columns(); ++j) {
    read_bytes(&sum_bytes[j * kSumChunks * 4], std::span(sums_).subspan(j * kSumChunks, kSumChunks));
    read_bytes(&square_bytes[j * kSquareChunks * 4],
               std::span(squares_).subspan(j * kSquareChunks, kSquareChunks));
  }
}

void ColumnSums::carry() noexcept {
  for (std::size_t j = 0; j < n_columns(); ++j) {
    carry_chunks(std::span(sums_).subspan(j * kSumChunks, kSumChunks));
    carry_chunks(std::span(squares_).subspan(j * kSquareChunks, kSquareChunks));
  }
  n_pending_ = 0;
}

// Adds a value, which must not be infinite; a missing one is not counted.
template <bool kAdd>
inline void ColumnSums::change_value(std::size_t column, double value) noexcept {
  constexpr std::int64_t kOne = kAdd ? 1 : -1;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t field = bits >> 52 & 0x7FF;
  if (field == 0x7FF) {
    return;
  }
  counts_[column] += kOne;
  const std::uint64_t mantissa = (bits & kMantissa) | (std::uint64_t{field != 0} << 52);
  const std::uint64_t place = field - std::uint64_t{field != 0};
  const int shift = static_cast<int>(place & 31);
  const std::int64_t sign = (bits >> 63 != 0) == kAdd ? -1 : 1;
  std::int64_t* sum = &sums_[column * kSumChunks + (place >> 5)];
  sum[0] += sign * static_cast<std::int64_t>(mantissa << shift & kDigit);
  sum[1] += sign * static_cast<std::int64_t>(mantissa >> (32 - shift));

  const Wide square = Wide{mantissa} * mantissa;
  const int wide_shift = static_cast<int>(2 * place & 31);
  const auto low = static_cast<std::uint64_t>(square);
  std::int64_t* squares = &squares_[column * kSquareChunks + (2 * place >> 5)];
  squares[0] += kOne * static_cast<std::int64_t>(low << wide_shift & kDigit);
  squares[1] += kOne * static_cast<std::int64_t>(low >> (32 - wide_shift) & kDigit);
  squares[2] += kOne * static_cast<std::int64_t>(
                           static_cast<std::uint64_t>(square >> (64 - wide_shift)) & kDigit);
  squares[3] += kOne * static_cast<std::int64_t>(square >> (96 - wide_shift));
}

template <bool kAdd>
void ColumnSums::change_rows(const double* data, std::size_t n_rows) noexcept {
  for (std::size_t i = 0; i < n_rows; ++i) {
    for (std::size_t j = 0; j < n_columns(); ++j, ++data) {
      change_value<kAdd>(j, *data);
    }
  }
}

template <bool kAdd>
void ColumnSums::change(const SparseBlock& block) {
  const auto& [begins, columns, values] = block;
  if (columns.size() != values.size() || begins.empty() || begins.front() != 0 ||
      begins.back() != static_cast<std::int64_t>(values.size()) ||
      !std::ranges::is_sorted(begins)) {
    throw std::invalid_argument("the arrays of sparse rows do not match");
  }
  const std::size_t n_rows = begins.size() - 1;
  for (std::size_t row = 0; row < n_rows; ++row) {
    std::int64_t last = -1;
    for (auto k = static_cast<std::size_t>(begins[row]); std::cmp_less(k, begins[row + 1]); ++k) {
      if (columns[k] <= last || std::cmp_greater_equal(columns[k], n_columns())) {
        throw std::invalid_argument("the columns of a sparse row do not increase, or are missing");
      }
      last = columns[k];
    }
  }
  if (has_infinity(values.data(), values.size())) {
    throw std::invalid_argument(kInfinity);
  }
  // All values count, also those that are not stored; `change_value` counts the stored ones again.
  constexpr std::int64_t kOne = kAdd ? 1 : -1;
  for (std::int64_t& count : counts_) {
    count += kOne * static_cast<std::int64_t>(n_rows);
  }
  for (std::size_t row = 0; row < n_rows; ++row) {
    if (++n_pending_ > kRowsPerCarry) {
      carry();
      n_pending_ = 1;
    }
    for (auto k = static_cast<std::size_t>(begins[row]); std::cmp_less(k, begins[row + 1]); ++k) {
      const auto column = static_cast<std::size_t>(columns[k]);
      counts_[column] -= kOne;
      change_value<kAdd>(column, values[k]);
    }
  }
}

void ColumnSums::add(const SparseBlock& block) { change<true>(block); }
void ColumnSums::subtract(const SparseBlock& block) { change<false>(block); }

template <bool kAdd>
void ColumnSums::change(Block block) {
  for (std::size_t row = 0; row < block.n_rows; row += kRowsPerScan) {
    const std::size_t n = std::min(kRowsPerScan, block.n_rows - row);
    const double* data = block.data + row * n_columns();
    if (has_infinity(data, n * n_columns())) {
      // Exact sums make it easy to undo the rows before.
      change<!kAdd>({block.data, row});
      throw std::invalid_argument(kInfinity);
    }
    if (n_pending_ + n > kRowsPerCarry) {
      carry();
    }
    change_rows<kAdd>(data, n);
    n_pending_ += n;
  }
}

void ColumnSums::add(Block block) { change<true>(block); }

void ColumnSums::subtract(Block block) { change<false>(block); }

void ColumnSums::copy_column(std::size_t to, const ColumnSums& other, std::size_t from) noexcept {
  counts_[to] = other.counts_[from];
  std::copy_n(&other.sums_[from * kSumChunks], kSumChunks, &sums_[to * kSumChunks]);
  std::copy_n(&other.squares_[from * kSquareChunks], kSquareChunks, &squares_[to * kSquareChunks]);
}

ColumnSums ColumnSums::select(std::span<const std::int64_t> columns) const {
  ColumnSums out(columns.size());
  out.n_pending_ = n_pending_;
  for (std::size_t j = 0; j < columns.size(); ++j) {
    if (columns[j] < -1 || columns[j] >= static_cast<std::int64_t>(n_columns())) {
      throw std::invalid_argument("a selected column is outside the table");
    }
    if (columns[j] >= 0) {
      out.copy_column(j, *this, static_cast<std::size_t>(columns[j]));
    }
  }
  return out;
}

void ColumnSums::put(std::span<const std::int64_t> columns, const ColumnSums& other) {
  if (columns.size() != other.n_columns() ||
      std::ranges::any_of(columns, [this](std::int64_t column) {
        return column < 0 || column >= static_cast<std::int64_t>(n_columns());
      })) {
    throw std::invalid_argument("a replaced column is outside the table");
  }
  n_pending_ = std::max(n_pending_, other.n_pending_);
  for (std::size_t j = 0; j < columns.size(); ++j) {
    copy_column(static_cast<std::size_t>(columns[j]), other, j);
  }
}

std::vector<std::uint8_t> ColumnSums::sum_bytes() const {
  std::vector<std::uint8_t> out(sums_.size() * 4);
  for (std::size_t j = 0; j < n_columns(); ++j) {
    write_bytes(std::span(sums_).subspan(j * kSumChunks, kSumChunks), &out[j * kSumChunks * 4]);
  }
  return out;
}

std::vector<std::uint8_t> ColumnSums::square_bytes() const {
  std::vector<std::uint8_t> out(squares_.size() * 4);
  for (std::size_t j = 0; j < n_columns(); ++j) {
    write_bytes(std::span(squares_).subspan(j * kSquareChunks, kSquareChunks),
                &out[j * kSquareChunks * 4]);
  }
  return out;
}

std::vector<double> ColumnSums::sums() const {
  std::vector<double> out(n_columns());
  for (std::size_t j = 0; j < out.size(); ++j) {
    const Signed sum = value_of(std::span(sums_).subspan(j * kSumChunks, kSumChunks));
    const double value = sum.size.to_double(kSumUnit, false);
    out[j] = sum.is_negative ? -value : value;
  }
  return out;
}

std::vector<double> ColumnSums::means() const {
  std::vector<double> out(n_columns(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t j = 0; j < out.size(); ++j) {
    if (counts_[j] > 0) {
      out[j] = exact_mean(value_of(std::span(sums_).subspan(j * kSumChunks, kSumChunks)),
                          static_cast<std::uint64_t>(counts_[j]));
    }
  }
  return out;
}

std::vector<double> ColumnSums::variances() const {
  std::vector<double> out(n_columns(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t j = 0; j < out.size(); ++j) {
    if (counts_[j] > 0) {
      const auto count = static_cast<std::uint64_t>(counts_[j]);
      const Natural total = spread(
          value_of(std::span(sums_).subspan(j * kSumChunks, kSumChunks)).size,
          value_of(std::span(squares_).subspan(j * kSquareChunks, kSquareChunks)).size, count);
      const Division once = total.shifted(192).floor() / count;
      const Division twice = once.quotient / count;
      out[j] = twice.quotient.to_double(kSquareUnit - 192, once.has_rest || twice.has_rest);
    }
  }
  return out;
}

LocationScale ColumnSums::round(std::span<const std::uint64_t> scale_dithers,
                                std::span<const std::uint64_t> centre_dithers,
                                RoundingGrid grid) const {
  if (scale_dithers.size() != n_columns() || centre_dithers.size() != n_columns()) {
    throw std::invalid_argument("one dither per column is needed");
  }
  if (grid.centre_bits < -16 || grid.centre_bits > 52 || grid.scale_step < 1 ||
      grid.scale_step > 8) {
    throw std::invalid_argument("centre_bits must be -16 to 52, and scale_step 1 to 8");
  }
  LocationScale out{std::vector<double>(n_columns()), std::vector<std::int32_t>(n_columns())};
  for (std::size_t j = 0; j < n_columns(); ++j) {
    if (counts_[j] <= 0) {
      continue;
    }
    const auto count = static_cast<std::uint64_t>(counts_[j]);
    const Signed sum = value_of(std::span(sums_).subspan(j * kSumChunks, kSumChunks));
    const Signed squares = value_of(std::span(squares_).subspan(j * kSquareChunks, kSquareChunks));
    const Natural total = spread(sum.size, squares.size, count);
    if (total.is_zero()) {
      out.centres[j] = exact_mean(sum, count);
      continue;
    }
    out.exponents[j] = scale_exponent(total, count, scale_dithers[j], grid.scale_step);
    out.centres[j] =
        limit(rounded_mean(sum, count, centre_dithers[j], out.exponents[j] - grid.centre_bits));
  }
  return out;
}

}  // namespace letheon::sums
