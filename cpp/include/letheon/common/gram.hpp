// Exact products of columns: rows on a fixed-point grid, and sums of products as integers.
//
// A value on the grid is an integer of 31 bits. It is split into two slices, value = high * 2^16 +
// low, so that sums of products of slices are exact in doubles for up to 2^20 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace letheon::sums {

inline constexpr int kGridBits = 20;
inline constexpr int kLargestBits = 30;

// Columns of a row-major matrix; `stride` is the distance of two rows, in elements.
template <typename T>
struct Columns {
  T* data;
  std::size_t n_rows;
  std::size_t n_columns;
  std::size_t stride;
};

// q = rint((x * factor - shift) * root * 2^20), clipped to 2^30 - 1, as two slices. `roots` has one
// number per row, or is empty for 1. Adds the clipped values of each column to `n_clipped`.
// Sizes must match: std::invalid_argument otherwise.
void quantise(Columns<const double> X, std::span<const double> factors,
              std::span<const double> shifts, std::span<const double> roots, Columns<double> high,
              Columns<double> low, std::span<std::int64_t> n_clipped);

// Adds sign * (products of slices) of all rows to three matrices of n_columns^2 integers, one after
// the other: high * high, high * low + low * high, low * low. Sizes must match:
// std::invalid_argument otherwise.
void add_products(Columns<const double> high, Columns<const double> low, std::int64_t sign,
                  std::span<std::int64_t> products);

// The same for sparse rows: values `begins[i]` up to `begins[i + 1]` belong to row i. `floats` is
// empty, or the products as n_columns^2 doubles, which are renewed where the integers change. Throws
// std::invalid_argument when sizes do not match or a column is not below `n_columns`.
void add_sparse_products(std::span<const std::int64_t> begins,
                         std::span<const std::int64_t> columns, std::span<const std::int64_t> high,
                         std::span<const std::int64_t> low, std::int64_t sign,
                         std::size_t n_columns, std::span<std::int64_t> products,
                         std::span<double> floats);

}  // namespace letheon::sums
