#include "letheon/common/gram.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace letheon::sums {
namespace {

constexpr double kUnits = static_cast<double>(1 << kGridBits);
constexpr double kLargest = static_cast<double>((1 << kLargestBits) - 1);
constexpr double kSlice = 65536.0;

// The nearest integer, ties to even, of a number below 2^51: no call, no rounding mode to read.
double nearest(double value) noexcept {
  constexpr double kMagic = 0x1.8p52;
  return (value + kMagic) - kMagic;
}

double limited(double value) noexcept {
  const double below = value < kLargest ? value : kLargest;
  return below > -kLargest ? below : -kLargest;
}

bool is_outside(double value) noexcept { return value > kLargest || value < -kLargest; }

// A sum of products in units of the scale. Only the conversions and the sums round, in this order.
double number_of(std::int64_t high, std::int64_t mixed, std::int64_t low) noexcept {
  return static_cast<double>(high) * 0x1p-8 + static_cast<double>(mixed) * 0x1p-24 +
         static_cast<double>(low) * 0x1p-40;
}

// One row; returns the number of clipped values. No branches, so that compilers use vectors.
std::int64_t quantise_row(const double* __restrict x, const double* __restrict factors,
                          const double* __restrict shifts, double unit, double* __restrict high,
                          double* __restrict low, std::size_t n_columns) noexcept {
  std::int64_t n_outside = 0;
  for (std::size_t j = 0; j < n_columns; ++j) {
    const double exact = (x[j] * factors[j] - shifts[j]) * unit;
    const double value = nearest(limited(exact));
    const double upper = nearest(value * (1.0 / kSlice));
    high[j] = upper;
    low[j] = value - upper * kSlice;
    n_outside += (exact > kLargest ? 1 : 0) + (exact < -kLargest ? 1 : 0);
  }
  return n_outside;
}

}  // namespace

void quantise(Columns<const double> X, std::span<const double> factors,
              std::span<const double> shifts, std::span<const double> roots, Columns<double> high,
              Columns<double> low, std::span<std::int64_t> n_clipped) {
  const std::size_t n_rows = X.n_rows;
  const std::size_t n_columns = X.n_columns;
  if (factors.size() != n_columns || shifts.size() != n_columns || n_clipped.size() != n_columns ||
      (!roots.empty() && roots.size() != n_rows) || high.n_rows != n_rows ||
      low.n_rows != n_rows || high.n_columns != n_columns || low.n_columns != n_columns) {
    throw std::invalid_argument("the arrays of a grid have different sizes");
  }
  for (std::size_t i = 0; i < n_rows; ++i) {
    const double* x = X.data + i * X.stride;
    double* high_row = high.data + i * high.stride;
    double* low_row = low.data + i * low.stride;
    const double unit = (roots.empty() ? 1.0 : roots[i]) * kUnits;
    const std::int64_t n_outside =
        quantise_row(x, factors.data(), shifts.data(), unit, high_row, low_row, n_columns);
    for (std::size_t j = 0; n_outside != 0 && j < n_columns; ++j) {
      n_clipped[j] += is_outside((x[j] * factors[j] - shifts[j]) * unit) ? 1 : 0;
    }
  }
}

void add_products(Columns<const double> high, Columns<const double> low, std::int64_t sign,
                  std::span<std::int64_t> products) {
  const std::size_t n = high.n_columns;
  if (low.n_columns != n || low.n_rows != high.n_rows || products.size() != 3 * n * n) {
    throw std::invalid_argument("the arrays of products have different sizes");
  }
  std::vector<std::int64_t> upper(n);
  std::vector<std::int64_t> lower(n);
  for (std::size_t row = 0; row < high.n_rows; ++row) {
    for (std::size_t j = 0; j < n; ++j) {
      upper[j] = static_cast<std::int64_t>(high.data[row * high.stride + j]);
      lower[j] = static_cast<std::int64_t>(low.data[row * low.stride + j]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t a = sign * upper[i];
      const std::int64_t b = sign * lower[i];
      if (a == 0 && b == 0) {
        continue;
      }
      std::int64_t* high_high = &products[i * n];
      std::int64_t* mixed = high_high + n * n;
      std::int64_t* low_low = mixed + n * n;
      for (std::size_t j = 0; j < n; ++j) {
        high_high[j] += a * upper[j];
        mixed[j] += a * lower[j] + b * upper[j];
        low_low[j] += b * lower[j];
      }
    }
  }
}

void add_sparse_products(std::span<const std::int64_t> begins,
                         std::span<const std::int64_t> columns, std::span<const std::int64_t> high,
                         std::span<const std::int64_t> low, std::int64_t sign,
                         std::size_t n_columns, std::span<std::int64_t> products,
                         std::span<double> floats) {
  const auto n_values = static_cast<std::int64_t>(columns.size());
  const bool has_sizes = high.size() == columns.size() && low.size() == columns.size() &&
                         products.size() == 3 * n_columns * n_columns &&
                         (floats.empty() || 3 * floats.size() == products.size()) &&
                         !begins.empty() && begins.front() == 0 && begins.back() == n_values &&
                         std::ranges::is_sorted(begins);
  if (!has_sizes || std::ranges::any_of(columns, [n_columns](std::int64_t column) {
        return column < 0 || column >= static_cast<std::int64_t>(n_columns);
      })) {
    throw std::invalid_argument("the arrays of sparse products do not match");
  }
  const std::size_t size = n_columns * n_columns;
  for (std::size_t row = 0; row + 1 < begins.size(); ++row) {
    const auto begin = static_cast<std::size_t>(begins[row]);
    const auto end = static_cast<std::size_t>(begins[row + 1]);
    for (std::size_t i = begin; i < end; ++i) {
      const std::int64_t a = sign * high[i];
      const std::int64_t b = sign * low[i];
      const std::size_t start = static_cast<std::size_t>(columns[i]) * n_columns;
      std::int64_t* line = &products[start];
      for (std::size_t j = begin; j < end; ++j) {
        const auto column = static_cast<std::size_t>(columns[j]);
        line[column] += a * high[j];
        line[column + size] += a * low[j] + b * high[j];
        line[column + 2 * size] += b * low[j];
        if (!floats.empty()) {
          floats[start + column] =
              number_of(line[column], line[column + size], line[column + 2 * size]);
        }
      }
    }
  }
}

}  // namespace letheon::sums
