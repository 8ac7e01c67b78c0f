// Summing up rows by cells: private to the scanner's files.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "letheon/common/table.hpp"

namespace letheon::forest {

// Adds row i to the lanes at `lanes`.
struct Adder {
  const std::uint16_t* labels;
  const std::int64_t* q;
  const std::uint32_t* weights;  // null: all 1

  void operator()(std::int64_t* lanes, std::size_t i) const noexcept {
    const std::int64_t weight = weights == nullptr ? 1 : weights[i];
    if (labels != nullptr) {
      lanes[labels[i]] += weight;
    } else {
      lanes[0] += weight;
      lanes[1] += weight * q[i];
    }
  }
};

inline constexpr std::size_t kPackedCells = 257;

// Two classes without weights: both counts of a cell in one number, and neighbouring rows in
// different tables, so that one addition seldom waits for another.
template <typename Cell>
void tally_two(std::size_t n, std::size_t n_cells, const std::uint16_t* labels,
               std::int64_t* tallies, Cell cell) {
  std::array<std::uint64_t, kPackedCells> even;
  std::array<std::uint64_t, kPackedCells> odd;
  std::fill_n(even.begin(), n_cells, 0);
  std::fill_n(odd.begin(), n_cells, 0);
  std::size_t i = 0;
  for (; i + 2 <= n; i += 2) {
    even[cell(i)] += 1 + (std::uint64_t{labels[i]} << 32);
    odd[cell(i + 1)] += 1 + (std::uint64_t{labels[i + 1]} << 32);
  }
  if (i < n) {
    even[cell(i)] += 1 + (std::uint64_t{labels[i]} << 32);
  }
  for (std::size_t k = 0; k < n_cells; ++k) {
    const std::uint64_t both = even[k] + odd[k];
    const auto second = static_cast<std::int64_t>(both >> 32);
    tallies[2 * k] += static_cast<std::int64_t>(both & 0xFFFFFFFFu) - second;
    tallies[2 * k + 1] += second;
  }
}

// Calls add(lanes, i) with the branches of Adder decided outside of the loop.
template <typename Cell>
void tally(std::size_t n, std::uint32_t n_lanes, std::size_t n_cells, const Adder& adder,
           std::int64_t* tallies, Cell cell) {
  if (adder.labels != nullptr && adder.weights == nullptr) {
    if (n_lanes == 2 && n_cells <= kPackedCells) {
      tally_two(n, n_cells, adder.labels, tallies, cell);
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      ++tallies[cell(i) * n_lanes + adder.labels[i]];
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    adder(tallies + cell(i) * n_lanes, i);
  }
}

template <typename T>
void gather(const T* source, std::span<const Slot> rows, std::vector<T>& out) {
  if (out.size() < rows.size()) {
    out.resize(rows.size());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out[i] = source[rows[i]];
  }
}

}  // namespace letheon::forest
