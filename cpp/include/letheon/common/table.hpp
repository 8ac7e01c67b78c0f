// The training rows, by slot: columns of X, targets, weights.
//
// A slot is a row's number for as long as the row is held. Erasing a row wipes its slot; `kept`
// makes a table without the holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>


namespace letheon {

using Slot = std::uint32_t;

// The canonical form of a float: +0.0 for -0.0 and one bit pattern for NaN.
[[nodiscard]] inline float canonical(float value) noexcept {
  return value == value ? value + 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// A matrix of float or double anywhere in memory; strides in bytes. Or, if `begins` is not empty,
// a sparse one: entries begins[j] to begins[j + 1] are the values of column j in the rows `places`.
struct MatrixView {
  const std::byte* data = nullptr;
  std::size_t n_rows = 0;
  std::size_t n_columns = 0;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t column_stride = 0;
  bool is_double = false;
  std::span<const std::int64_t> begins = {};
  std::span<const std::int64_t> places = {};

  [[nodiscard]] bool is_sparse() const noexcept { return !begins.empty(); }
  // The values of a column of a sparse matrix.
  [[nodiscard]] std::vector<float> sparse_column(std::size_t column) const;
  // Throws std::invalid_argument if a sparse matrix is not laid out as above.
  void validate() const;
  // The value of a dense matrix as models hold it: nearest float, -0.0 as +0.0, one NaN. May be
  // infinite.
  [[nodiscard]] float at(std::size_t row, std::size_t column) const noexcept {
    const std::byte* const number = place(row, column);
    return canonical(is_double ? static_cast<float>(*reinterpret_cast<const double*>(number))
                               : *reinterpret_cast<const float*>(number));
  }
  [[nodiscard]] const std::byte* place(std::size_t row, std::size_t column) const noexcept {
    return data + static_cast<std::ptrdiff_t>(row) * row_stride +
           static_cast<std::ptrdiff_t>(column) * column_stride;
  }
  // Whether the values of a row stand together.
  [[nodiscard]] bool has_dense_rows() const noexcept {
    return column_stride == static_cast<std::ptrdiff_t>(is_double ? sizeof(double) : sizeof(float));
  }
};

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

// One column of X. Two distinct values: one bit per row. Few: one byte per row. Both are numbers of
// values in a table, so that counting needs no search. Many: the floats themselves.
class Column {
 public:
  static constexpr std::uint8_t kMissingCode = 255;
  static constexpr std::size_t kMaxCodes = 255;
  static constexpr std::size_t kWordRows = 64;

  class Builder;

  void assign(std::span<const float> values);
  // Adds the rows of another column behind these.
  void append(Column later);
  void erase(Slot slot) noexcept;
  // Starts to load what `erase` will change.
  void fetch(Slot slot) const noexcept;
  [[nodiscard]] Column kept(std::span<const Slot> slots) const;
  void truncate(std::size_t n_slots) noexcept;

  [[nodiscard]] bool is_coded() const noexcept { return kind_ != Kind::floats; }
  [[nodiscard]] bool is_packed() const noexcept { return kind_ == Kind::bits; }
  // Whether a row without a value may be there; false is certain.
  [[nodiscard]] bool has_missing() const noexcept { return has_missing_; }
  // The codes of a packed column: bit i % 64 of word i / 64 is that of row i.
  [[nodiscard]] const std::uint64_t* words() const noexcept { return words_.data(); }
  // The codes of a coded column that is not packed.
  [[nodiscard]] const std::uint8_t* codes() const noexcept { return codes_.data(); }
  [[nodiscard]] const float* values() const noexcept { return values_.data(); }
  // Ascending; entries that no row uses are NaN.
  [[nodiscard]] std::span<const float> table() const noexcept { return table_; }
  [[nodiscard]] float at(Slot slot) const noexcept;
  [[nodiscard]] std::size_t n_bytes() const noexcept;

  // Calls read(code_of) for a coded column, where code_of(slot) is the code of a row.
  template <typename Read>
  auto read_codes(Read read) const {
    if (kind_ == Kind::bits) {
      return read([words = words_.data()](Slot slot) noexcept {
        return static_cast<std::uint8_t>((words[slot / kWordRows] >> (slot % kWordRows)) & 1u);
      });
    }
    return read([codes = codes_.data()](Slot slot) noexcept { return codes[slot]; });
  }

 private:
  enum class Kind : std::uint8_t { bits, codes, floats };

  [[nodiscard]] std::vector<float> decoded() const;
  [[nodiscard]] std::size_t size() const noexcept;

  Kind kind_ = Kind::floats;
  bool has_missing_ = false;
  std::size_t n_packed_ = 0;  // rows of a packed column
  std::vector<std::uint64_t> words_;
  std::vector<float> values_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> table_;
  std::vector<std::uint32_t> uses_;
};

// Collects the values of a column part by part: as bits while there are two distinct values, as
// codes while there are few, as floats from then on.
class Column::Builder {
 public:
  explicit Builder(std::size_t n_rows) : n_rows_(n_rows) {}

  // Values in canonical form, at most `n_rows` in all; false if any is missing or infinite.
  bool add(std::span<const float> values);
  // The values of kWordRows rows after as many times kWordRows: bit i is set if row i has the
  // value `high()`; all other rows have the value `low()`.
  void add_word(std::uint64_t word);
  // Whether the column is packed so far. Then its values are among low() and high(), which are NaN
  // while they are unknown.
  [[nodiscard]] bool is_packed() const noexcept { return kind_ == Kind::bits; }
  [[nodiscard]] float low() const noexcept { return value_of(0); }
  [[nodiscard]] float high() const noexcept { return value_of(1); }
  [[nodiscard]] Column finish();

 private:
  [[nodiscard]] float value_of(std::size_t code) const noexcept {
    return code < distinct_.size() ? distinct_[code] : std::numeric_limits<float>::quiet_NaN();
  }
  [[nodiscard]] std::size_t code_of(float value) noexcept;
  void make_room(std::size_t n);
  [[nodiscard]] bool pack(std::span<const float> values);
  void add_codes(std::span<const float> values);
  void leave_bits();
  void leave_codes();

  std::size_t n_rows_;
  std::size_t n_ = 0;  // codes so far
  Kind kind_ = Kind::bits;
  bool has_missing_ = false;
  std::array<std::uint16_t, 512> places_{};  // of distinct values: open addressing over the bits
  std::array<std::uint32_t, kMaxCodes + 1> uses_{};
  std::vector<float> distinct_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> values_;
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
  // The same for these rows of the batch, in this order.
  std::vector<Slot> append(const Batch& batch, std::uint32_t n_classes,
                           std::span<const std::size_t> rows, std::size_t n_threads = 1);
  // True if a class has lost its last row.
  bool erase(std::span<const Slot> slots) noexcept;
  // Undoes the last `append`.
  void take_back(std::size_t n_slots, std::uint32_t n_classes) noexcept;
  // The same rows with new numbers: those at these ascending slots, and no others.
  [[nodiscard]] Table kept(std::span<const Slot> slots) const;

  [[nodiscard]] RowBlock copy(std::span<const Slot> slots) const;
  // The same; throws std::invalid_argument unless all slots are held.
  [[nodiscard]] RowBlock copy_held(std::span<const Slot> slots) const;

  // The weight w of every row of class c becomes w / before[c] * after[c], without a remainder.
  // Throws std::invalid_argument, and has changed nothing then.
  void reweigh(std::span<const std::uint32_t> before, std::span<const std::uint32_t> after);

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
  [[nodiscard]] const std::uint8_t* alive() const noexcept { return alive_.data(); }  // 0 or 1
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
  void append_columns(const MatrixView& X, std::span<const std::size_t> rows,
                      std::size_t n_threads);
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

}  // namespace letheon
