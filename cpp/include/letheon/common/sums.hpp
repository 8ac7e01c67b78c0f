// Exact sums of the columns of a matrix, and values that are rounded with a key.
//
// A sum of doubles is kept as one wide fixed-point integer ("small superaccumulator", Neal 2015):
// adding and subtracting is exact, so the order of the rows does not matter and nothing remains of a
// row that was subtracted. Squares are kept exactly too. No function of libm decides anything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace letheon::sums {

// Digits of 32 bits in chunks of 64 bits. The unit of a sum is 2^-1074, of a sum of squares 2^-2148.
inline constexpr std::size_t kSumChunks = 68;
inline constexpr std::size_t kSquareChunks = 134;

// 2^(dither / 2^64) as an integer in units of 2^-63, from 2^63 to 2^64 - 1: the product, rounded down
// after each factor, of the roots 2^(1/2), 2^(1/4), ... (integer square roots) of the set bits, from
// the highest bit. Less than 256 units below the exact value.
[[nodiscard]] std::uint64_t power_of_two(std::uint64_t dither) noexcept;

// A row-major matrix of doubles. NaN is a missing value.
struct Block {
  const double* data;
  std::size_t n_rows;
};

// Sparse rows: values `begins[i]` up to `begins[i + 1]` belong to row i, with increasing columns.
struct SparseBlock {
  std::span<const std::int64_t> begins;
  std::span<const std::int64_t> columns;
  std::span<const double> values;
};

struct LocationScale {
  std::vector<double> centres;
  std::vector<std::int32_t> exponents;  // the scale of a column is 2^exponent
};

struct RoundingGrid {
  int centre_bits = 0;
  int scale_step = 1;
};

class ColumnSums {
 public:
  explicit ColumnSums(std::size_t n_columns);

  // Reads what `sum_bytes` and `square_bytes` wrote. Throws std::invalid_argument for other sizes.
  ColumnSums(std::span<const std::int64_t> counts, std::span<const std::uint8_t> sum_bytes,
             std::span<const std::uint8_t> square_bytes);

  [[nodiscard]] std::size_t n_columns() const noexcept { return counts_.size(); }
  [[nodiscard]] std::span<const std::int64_t> counts() const noexcept { return counts_; }

  // Throw std::invalid_argument when the block has an infinity; then nothing has changed.
  void add(Block block);
  void subtract(Block block);

  // The same, for sparse rows; also throw when the arrays do not match.
  void add(const SparseBlock& block);
  void subtract(const SparseBlock& block);

  // The given columns in the given order; -1 gives an empty column. Throws std::invalid_argument
  // for other numbers outside the table.
  [[nodiscard]] ColumnSums select(std::span<const std::int64_t> columns) const;

  // Replaces the given columns by the columns of `other`, in this order. Throws
  // std::invalid_argument when a column is outside the table or the numbers do not match.
  void put(std::span<const std::int64_t> columns, const ColumnSums& other);

  // Values as two's complement, little-endian, kSumChunks * 4 or kSquareChunks * 4 bytes per column.
  [[nodiscard]] std::vector<std::uint8_t> sum_bytes() const;
  [[nodiscard]] std::vector<std::uint8_t> square_bytes() const;

  // Correctly rounded. Means and variances (population) of columns without values are NaN.
  [[nodiscard]] std::vector<double> sums() const;
  [[nodiscard]] std::vector<double> means() const;
  [[nodiscard]] std::vector<double> variances() const;

  // Scale 2^e, e the largest multiple of g = grid.scale_step with
  // sd >= 2^(e - g) * (power_of_two(scale_dither) / 2^63)^g, within -1022 .. 1022.
  // Centre D * floor(mean / D + centre_dither / 2^64), D = 2^(e - grid.centre_bits), rounded to the
  // nearest double. A constant column has scale 1 and its value as the centre, a column without
  // values scale 1 and centre 0. Throws std::invalid_argument for other sizes, and for grids
  // beyond -16 <= centre_bits <= 52, 1 <= scale_step <= 8.
  [[nodiscard]] LocationScale round(std::span<const std::uint64_t> scale_dithers,
                                    std::span<const std::uint64_t> centre_dithers,
                                    RoundingGrid grid) const;

 private:
  template <bool kAdd>
  void change(Block block);
  template <bool kAdd>
  void change_rows(const double* data, std::size_t n_rows) noexcept;
  template <bool kAdd>
  void change(const SparseBlock& block);
  template <bool kAdd>
  void change_value(std::size_t column, double value) noexcept;
  void carry() noexcept;
  void copy_column(std::size_t to, const ColumnSums& other, std::size_t from) noexcept;

  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> sums_;     // kSumChunks per column
  std::vector<std::int64_t> squares_;  // kSquareChunks per column
  std::size_t n_pending_ = 0;          // rows since the last carry
};

}  // namespace letheon::sums
