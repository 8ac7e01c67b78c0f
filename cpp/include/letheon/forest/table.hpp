// The training rows, by slot: columns of X, targets, weights.
//
// A slot is a row's number for as long as the row is held. Erasing a row wipes its slot; `kept`
// makes a table without the holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "letheon/forest/spec.hpp"

namespace letheon::forest {

using Slot = std::uint32_t;

// A matrix of float or double anywhere in memory; strides in bytes.
struct MatrixView {
  const std::byte* data = nullptr;
  std::size_t n_rows = 0;
  std::size_t n_columns = 0;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t column_stride = 0;
  bool is_double = false;

  // The value as the forest holds it: nearest float, -0.0 as +0.0, one NaN. May be infinite.
  [[nodiscard]] float at(std::size_t row, std::size_t column) const noexcept;
};

// The canonical form of a float: +0.0 for -0.0 and one bit pattern for NaN.
[[nodiscard]] float canonical(float value) noexcept;

// Rows to add. Either `labels` or `y` is used.
struct Batch {
  MatrixView X;
  std::span<const std::uint32_t> labels;
  std::span<const double> y;
  std::span<const std::uint32_t> weights;  // empty: all 1
  std::span<const std::uint64_t> owners;   // hash of each row's id; empty without subsampling
};

// Numbers of the rows that are there at all.
[[nodiscard]] std::vector<std::size_t> rows_with_weight(const Batch& batch);

// One column of X. Few distinct values: one byte per row and a table, so that counting needs no
// search. Many: the floats themselves.
class Column {
 public:
  static constexpr std::uint8_t kMissingCode = 255;
  static constexpr std::size_t kMaxCodes = 255;

  void assign(std::vector<float> values);
  void append(std::span<const float> values);
  void erase(Slot slot) noexcept;
  [[nodiscard]] Column kept(std::span<const Slot> slots) const;
  void truncate(std::size_t n_slots) noexcept;

  [[nodiscard]] bool is_coded() const noexcept { return coded_; }
  // Whether a row without a value may be there; false is certain.
  [[nodiscard]] bool has_missing() const noexcept { return has_missing_; }
  [[nodiscard]] const std::uint8_t* codes() const noexcept { return codes_.data(); }
  [[nodiscard]] const float* values() const noexcept { return values_.data(); }
  // Ascending; entries that no row uses are NaN.
  [[nodiscard]] std::span<const float> table() const noexcept { return table_; }
  [[nodiscard]] float at(Slot slot) const noexcept;
  [[nodiscard]] std::size_t n_bytes() const noexcept;

 private:
  [[nodiscard]] bool encode(std::span<const float> values);
  [[nodiscard]] std::vector<float> decoded() const;

  bool coded_ = false;
  bool has_missing_ = false;
  std::vector<float> values_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> table_;
  std::vector<std::uint32_t> uses_;
};

// Rows outside the table: those about to leave, in row-major order, so that a walk through the
// trees reads each of them from one place.
struct RowBlock {
  std::size_t n_columns = 0;
  std::vector<Slot> slots;
  std::vector<float> x;
  std::vector<std::uint16_t> labels;
  std::vector<std::int64_t> q;
  std::vector<std::uint32_t> weights;

  [[nodiscard]] const float* row(std::size_t i) const noexcept { return x.data() + i * n_columns; }
};

class Table {
 public:
  static constexpr std::uint32_t kMaxClasses = 65535;

  Table() = default;
  Table(std::uint32_t n_columns, bool regression, std::optional<int> y_exponent);

  // Throws std::invalid_argument on infinities, wrong lengths, labels out of range, or a total
  // weight of 2^31 or more, and has changed nothing then. Rows of weight 0 are skipped.
  // Returns the slots of the added rows, one per row of weight > 0. There must be no holes.
  std::vector<Slot> append(const Batch& batch, std::uint32_t n_classes);
  // True if a class has lost its last row.
  bool erase(std::span<const Slot> slots) noexcept;
  // Undoes the last `append`.
  void take_back(std::size_t n_slots, std::uint32_t n_classes) noexcept;
  // The same rows with new numbers: those at these ascending slots, and no others.
  [[nodiscard]] Table kept(std::span<const Slot> slots) const;

  [[nodiscard]] RowBlock copy(std::span<const Slot> slots) const;

  // Whether all rows except the doomed ones have the same value in a column.
  [[nodiscard]] bool is_constant(std::size_t column,
                                 const std::vector<std::uint8_t>& doomed) const noexcept;
  // Column j becomes the old column layout[j], or a new one that is fills[j] in all rows (-1).
  void move_columns(std::span<const std::int64_t> layout, std::span<const float> fills);

  // Regression: sets the scale that the rows held now ask for; true if it changed.
  bool rescale() noexcept;
  // Whether it would change without these rows.
  [[nodiscard]] bool would_rescale(std::span<const Slot> leaving) const;
  // Weight of each class.
  [[nodiscard]] const std::vector<std::int64_t>& class_weights() const noexcept {
    return class_weights_;
  }

  [[nodiscard]] bool is_regression() const noexcept { return regression_; }
  [[nodiscard]] std::size_t n_slots() const noexcept { return alive_.size(); }
  [[nodiscard]] std::size_t n_rows() const noexcept { return n_rows_; }
  [[nodiscard]] std::uint32_t n_columns() const noexcept {
    return static_cast<std::uint32_t>(columns_.size());
  }
  [[nodiscard]] std::uint32_t n_classes() const noexcept { return n_classes_; }
  // Numbers that a set of rows is summed up in: one per class, or (weight, sum of q).
  [[nodiscard]] std::uint32_t n_lanes() const noexcept { return regression_ ? 2 : n_classes_; }
  [[nodiscard]] bool is_alive(Slot slot) const noexcept { return alive_[slot] != 0; }
  [[nodiscard]] const Column& column(std::size_t index) const noexcept { return columns_[index]; }
  [[nodiscard]] std::uint16_t label(Slot slot) const noexcept { return labels_[slot]; }
  [[nodiscard]] double y(Slot slot) const noexcept { return y_[slot]; }
  [[nodiscard]] std::int64_t q(Slot slot) const noexcept { return q_[slot]; }
  [[nodiscard]] bool is_weighted() const noexcept { return !weights_.empty(); }
  [[nodiscard]] std::uint32_t weight(Slot slot) const noexcept {
    return weights_.empty() ? 1u : weights_[slot];
  }
  [[nodiscard]] std::uint64_t owner(Slot slot) const noexcept { return owners_[slot]; }
  [[nodiscard]] const std::uint16_t* labels() const noexcept { return labels_.data(); }
  [[nodiscard]] const std::int64_t* qs() const noexcept { return q_.data(); }
  [[nodiscard]] const std::uint32_t* weights() const noexcept { return weights_.data(); }
  [[nodiscard]] int exponent() const noexcept { return exponent_; }
  [[nodiscard]] std::size_t n_bytes() const noexcept;

 private:
  void check(const Batch& batch, std::uint32_t n_classes) const;
  void append_columns(const MatrixView& X, std::span<const std::size_t> rows);
  void append_targets(const Batch& batch, std::span<const std::size_t> rows);
  void append_weights(const Batch& batch, std::span<const std::size_t> rows);
  void truncate(std::size_t n_slots) noexcept;
  [[nodiscard]] int wanted_exponent(const std::map<int, std::size_t>& exponents) const noexcept;

  bool regression_ = false;
  std::optional<int> fixed_exponent_;
  std::uint32_t n_classes_ = 0;
  std::size_t n_rows_ = 0;
  std::uint64_t total_weight_ = 0;
  std::vector<Column> columns_;
  std::vector<std::uint16_t> labels_;
  std::vector<std::int64_t> class_weights_;
  std::vector<double> y_;
  std::vector<std::int64_t> q_;          // y in fixed point
  std::map<int, std::size_t> exponents_;  // how many rows have y of that binary exponent
  int exponent_ = 0;
  std::vector<std::uint32_t> weights_;
  std::vector<std::uint64_t> owners_;
  std::vector<std::uint8_t> alive_;
};

}  // namespace letheon::forest
