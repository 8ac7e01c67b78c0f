// The rows of a chain with values as bins: one byte per row and column.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "letheon/boosting/spec.hpp"
#include "letheon/common/table.hpp"

namespace letheon::boosting {

// Bin 0 holds missing values; a categorical column has one bin per category, and the last one for
// all other categories. `edges[b - 1]` is the largest value (or the category) of bin b.
struct BinnedColumn {
  bool categorical = false;
  std::vector<float> edges;
  std::uint32_t n_bins = 1;  // with those of missing values and of other categories
  std::uint32_t first = 0;   // place of bin 0 in a histogram
  // Most rows are in this bin, and the histogram gets it by subtraction; kNone: in no bin.
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  std::uint32_t usual = kNone;
};

struct BinnedRows {
  BinnedRows(const Spec& spec, const Table& table, std::span<const Slot> rows);

  [[nodiscard]] const std::uint8_t* bins(std::size_t column) const noexcept {
    return bins_.data() + column * n_rows;
  }

  std::size_t n_rows;
  std::size_t histogram_size = 0;
  std::vector<BinnedColumn> columns;
  // The histogram places of row i, those of usual bins left out: entries[begins[i] .. begins[i+1]).
  std::vector<std::uint32_t> begins;
  std::unique_ptr<std::uint32_t[]> entries;
  std::vector<std::uint32_t> weights;

 private:
  std::vector<std::uint8_t> bins_;
};

}  // namespace letheon::boosting
