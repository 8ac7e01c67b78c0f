#include "letheon/common/table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "letheon/common/clones.hpp"
#include "letheon/common/workers.hpp"

namespace letheon {

namespace {

constexpr std::uint64_t kMaxWeight = (std::uint64_t{1} << 31) - 1;
constexpr int kFixedPointBits = 31;
constexpr int kMaxExponent = 1008;

// Binary exponent E of a number, 2^(E-1) <= |y| < 2^E; a very small one for 0.
int exponent_of(double y) noexcept {
  int exponent = 0;
  if (y == 0.0) {
    return -10000;
  }
  static_cast<void>(std::frexp(y, &exponent));
  return exponent;
}

std::int64_t fixed_point(double y, int exponent) noexcept {
  return static_cast<std::int64_t>(std::nearbyint(std::ldexp(y, kFixedPointBits - exponent)));
}

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

template <typename T>
std::vector<T> kept_values(const std::vector<T>& values, std::span<const Slot> slots) {
  std::vector<T> kept;
  if (!values.empty()) {
    kept.reserve(slots.size());
    for (const Slot slot : slots) {
      kept.push_back(values[slot]);
    }
  }
  return kept;
}

// Refuses infinite values; values[k] is that of row rows[k].
void require_finite(std::span<const float> values, std::span<const std::size_t> rows,
                    std::size_t column) {
  const auto is_infinite = [](float x) { return std::isinf(x); };
  if (std::ranges::count_if(values, is_infinite) > 0) {  // counting is a loop without branches
    const auto at = std::ranges::find_if(values, is_infinite) - values.begin();
    refuse("X holds infinity or a value too large for float32 in row " +
           std::to_string(rows[static_cast<std::size_t>(at)]) + ", column " +
           std::to_string(column));
  }
}

constexpr std::size_t kTileRows = Column::kWordRows;
constexpr std::size_t kTileColumns = 32;

// Starts to load these columns of the rows.
void fetch_rows(const MatrixView& X, std::span<const std::size_t> rows, std::size_t first,
                std::size_t last) noexcept {
  constexpr std::ptrdiff_t kLine = 64;
  const auto size = static_cast<std::ptrdiff_t>(last - first) * X.column_stride;
  for (std::size_t i = 0; i < rows.size() && size >= 4 * kLine && X.row_stride >= size; ++i) {
    const std::byte* const row = X.place(rows[i], first);
    for (std::ptrdiff_t line = 0; line < size; line += kLine) {
      __builtin_prefetch(row + line);
    }
  }
}

// Compares the columns of one row with two values each: `bit` of words[j] is set if row[j] is
// high[j], and odd[j] if it is neither high[j] nor low[j].
template <typename Number>
LETHEON_INLINE void match_numbers(const Number* __restrict row, std::size_t n, std::uint32_t bit,
                                  const float* __restrict low, const float* __restrict high,
                                  std::uint32_t* __restrict words,
                                  std::uint32_t* __restrict odd) noexcept {
  for (std::size_t j = 0; j < n; ++j) {
    const auto x = static_cast<float>(row[j]);
    words[j] |= x == high[j] ? bit : 0u;
    odd[j] |= (x == high[j]) | (x == low[j]) ? 0u : 1u;
  }
}

LETHEON_VECTOR
void match_row(const float* row, std::size_t n, std::uint32_t bit, const float* low,
               const float* high, std::uint32_t* words, std::uint32_t* odd) noexcept {
  match_numbers(row, n, bit, low, high, words, odd);
}

LETHEON_VECTOR
void match_row(const double* row, std::size_t n, std::uint32_t bit, const float* low,
               const float* high, std::uint32_t* words, std::uint32_t* odd) noexcept {
  match_numbers(row, n, bit, low, high, words, odd);
}

template <typename Number>
void load_tile(const MatrixView& X, std::span<const std::size_t> rows,
               std::span<const std::size_t> columns,
               float (&out)[kTileColumns][kTileRows]) noexcept {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::byte* const row = X.place(rows[i], 0);
    for (std::size_t j = 0; j < columns.size(); ++j) {
      const std::byte* const place =
          row + static_cast<std::ptrdiff_t>(columns[j]) * X.column_stride;
      out[j][i] = canonical(static_cast<float>(*reinterpret_cast<const Number*>(place)));
    }
  }
}

// Builds the columns [first, last) of a dense matrix from tiles of rows, so that row-major memory is
// read once and in its order.
class TileReader {
 public:
  TileReader(const MatrixView& X, std::size_t first, std::size_t last, std::size_t n_rows)
      : X_(X), first_(first), n_(last - first), builders_(n_, Column::Builder(n_rows)),
        low_(n_, std::numeric_limits<float>::quiet_NaN()), high_(low_), words_(2 * n_), odd_(n_) {}

  // Adds at most kTileRows rows; only the last tile may have less.
  void add(std::span<const std::size_t> rows) {
    fetch_rows(X_, rows, first_, first_ + n_);
    std::ranges::fill(odd_, 1u);
    if (n_packed_ > 0 && rows.size() == kTileRows && X_.has_dense_rows()) {
      match_rows(rows);
    }
    others_.clear();
    for (std::size_t j = 0; j < n_; ++j) {
      if (odd_[j] == 0) {
        builders_[j].add_word(words_[j] | std::uint64_t{words_[n_ + j]} << (kTileRows / 2));
      } else {
        others_.push_back(first_ + j);
      }
    }
    for (std::size_t j = 0; j < others_.size(); j += kTileColumns) {
      const std::size_t n = std::min(kTileColumns, others_.size() - j);
      add_values(rows, std::span(others_).subspan(j, n));
    }
  }

  [[nodiscard]] Column finish(std::size_t column) { return builders_[column - first_].finish(); }

 private:
  void match_rows(std::span<const std::size_t> rows) noexcept {
    std::ranges::fill(odd_, 0u);
    std::ranges::fill(words_, 0u);
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const std::size_t half = i / (kTileRows / 2);
      const std::uint32_t bit = 1u << (i % (kTileRows / 2));
      std::uint32_t* const words = words_.data() + half * n_;
      const std::byte* const row = X_.place(rows[i], first_);
      if (X_.is_double) {
        match_row(reinterpret_cast<const double*>(row), n_, bit, low_.data(), high_.data(), words,
                  odd_.data());
      } else {
        match_row(reinterpret_cast<const float*>(row), n_, bit, low_.data(), high_.data(), words,
                  odd_.data());
      }
    }
  }

  void add_values(std::span<const std::size_t> rows, std::span<const std::size_t> columns) {
    float tile[kTileColumns][kTileRows];
    if (X_.is_double) {
      load_tile<double>(X_, rows, columns, tile);
    } else {
      load_tile<float>(X_, rows, columns, tile);
    }
    for (std::size_t j = 0; j < columns.size(); ++j) {
      const std::span<const float> values(tile[j], rows.size());
      const std::size_t number = columns[j] - first_;
      Column::Builder& builder = builders_[number];
      if (!builder.add(values)) {
        require_finite(values, rows, columns[j]);
      }
      n_packed_ -= low_[number] == low_[number] ? 1u : 0u;
      n_packed_ += builder.is_packed() ? 1u : 0u;
      low_[number] = builder.is_packed() ? builder.low() : std::numeric_limits<float>::quiet_NaN();
      high_[number] = builder.is_packed() ? builder.high() : low_[number];
    }
  }

  const MatrixView& X_;
  std::size_t first_;
  std::size_t n_;
  std::size_t n_packed_ = 0;  // columns that are packed so far
  std::vector<Column::Builder> builders_;
  std::vector<float> low_;  // the two values of the packed columns, NaN for the others
  std::vector<float> high_;
  std::vector<std::uint32_t> words_;  // of the first half of a tile, then of the second one
  std::vector<std::uint32_t> odd_;
  std::vector<std::size_t> others_;
};

// The values of these rows of a sparse column.
std::vector<float> sparse_values(const MatrixView& X, std::size_t column,
                                 std::span<const std::size_t> rows) {
  const std::vector<float> all = X.sparse_column(column);
  std::vector<float> values;
  values.reserve(rows.size());
  for (const std::size_t row : rows) {
    values.push_back(all[row]);
  }
  require_finite(values, rows, column);
  return values;
}

}  // namespace

std::vector<std::size_t> rows_with_weight(const Batch& batch) {
  std::vector<std::size_t> rows;
  rows.reserve(batch.X.n_rows);
  for (std::size_t i = 0; i < batch.X.n_rows; ++i) {
    if (batch.weights.empty() || batch.weights[i] > 0) {
      rows.push_back(i);
    }
  }
  return rows;
}

Table::Table(std::uint32_t n_columns, bool regression, std::optional<int> y_exponent)
    : regression_(regression), fixed_exponent_(y_exponent), columns_(n_columns) {}

void Table::check(const Batch& batch, std::uint32_t n_classes) const {
  const std::size_t n = batch.X.n_rows;
  if (batch.X.n_columns != columns_.size()) {
    refuse("X has " + std::to_string(batch.X.n_columns) + " columns; the model has " +
           std::to_string(columns_.size()));
  }
  batch.X.validate();
  if ((regression_ ? batch.y.size() : batch.labels.size()) != n ||
      (!batch.weights.empty() && batch.weights.size() != n) ||
      (!batch.owners.empty() && batch.owners.size() != n)) {
    refuse("X, targets, weights and owners must have one entry per row");
  }
  if (n_slots() + n >= kMaxWeight) {
    refuse("a model holds fewer than 2^31 rows");
  }
  if (n_classes > kMaxClasses) {
    refuse("a model takes at most " + std::to_string(kMaxClasses) + " classes");
  }
  std::uint64_t weight = total_weight_;
  for (std::size_t i = 0; i < n; ++i) {
    weight += batch.weights.empty() ? 1u : batch.weights[i];
  }
  if (weight > kMaxWeight) {
    refuse("the weights sum to 2^31 or more; divide them by a common factor");
  }
  if (std::ranges::any_of(batch.labels, [&](auto label) { return label >= n_classes; })) {
    refuse("a label is out of range");
  }
  for (const double y : batch.y) {
    if (!std::isfinite(y)) {
      refuse("y holds a value that is not finite");
    }
    if (exponent_of(y) > kMaxExponent) {
      refuse("y holds a value of 2^1008 or more, which no sum could hold; divide y by a constant");
    }
    if (fixed_exponent_ && exponent_of(y) > *fixed_exponent_) {
      refuse("y holds a value larger than y_max");
    }
  }
}

std::vector<Slot> Table::append(const Batch& batch, std::uint32_t n_classes) {
  return append(batch, n_classes, rows_with_weight(batch));
}

std::vector<Slot> Table::append(const Batch& batch, std::uint32_t n_classes,
                                std::span<const std::size_t> rows, std::size_t n_threads) {
  check(batch, n_classes);
  const std::size_t first = n_slots();
  std::vector<Slot> slots(rows.size());
  alive_.reserve(first + rows.size());
  class_weights_.reserve(regression_ ? 0 : std::max(n_classes_, n_classes));
  try {
    append_columns(batch.X, rows, n_threads);
    append_weights(batch, rows);
    append_targets(batch, rows);
  } catch (...) {
    truncate(first);
    throw;
  }
  n_classes_ = std::max(n_classes_, n_classes);
  class_weights_.resize(regression_ ? 0 : n_classes_, 0);  // reserved above
  alive_.resize(first + rows.size(), 1);
  n_rows_ += rows.size();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = static_cast<Slot>(first + i);
    total_weight_ += weight(slots[i]);
    if (!regression_) {
      class_weights_[labels_[slots[i]]] += weight(slots[i]);
    }
  }
  return slots;
}

void Table::truncate(std::size_t n_slots) noexcept {
  for (Column& column : columns_) {
    column.truncate(n_slots);
  }
  for (std::size_t i = n_slots; i < y_.size(); ++i) {
    const auto found = exponents_.find(exponent_of(y_[i]));
    if (found != exponents_.end() && --found->second == 0) {
      exponents_.erase(found);
    }
  }
  y_.resize(std::min(y_.size(), n_slots));
  q_.resize(std::min(q_.size(), n_slots));
  labels_.resize(std::min(labels_.size(), n_slots));
  owners_.resize(std::min(owners_.size(), n_slots));
  weights_.resize(std::min(weights_.size(), n_slots));
}

void Table::append_columns(const MatrixView& X, std::span<const std::size_t> rows,
                           std::size_t n_threads) {
  for (std::size_t j = 0; X.is_sparse() && j < columns_.size(); ++j) {
    Column column;
    column.assign(sparse_values(X, j, rows));
    columns_[j].append(std::move(column));
  }
  if (X.is_sparse()) {
    return;
  }
  constexpr std::size_t kTogether = 1024;
  const std::size_t n_groups = std::max(useful_threads(columns_.size(), n_threads),
                                        (columns_.size() + kTogether - 1) / kTogether);
  run_tasks(n_groups, n_threads, [&](std::size_t, std::size_t group) {
    const std::size_t first = columns_.size() * group / n_groups;
    const std::size_t last = columns_.size() * (group + 1) / n_groups;
    TileReader reader(X, first, last, rows.size());
    for (std::size_t begin = 0; begin < rows.size(); begin += kTileRows) {
      reader.add(rows.subspan(begin, std::min(kTileRows, rows.size() - begin)));
    }
    for (std::size_t j = first; j < last; ++j) {
      columns_[j].append(reader.finish(j));
    }
  });
}

void Table::append_targets(const Batch& batch, std::span<const std::size_t> rows) {
  for (const std::size_t i : rows) {
    if (!batch.owners.empty()) {
      owners_.push_back(batch.owners[i]);
    }
    if (!regression_) {
      labels_.push_back(static_cast<std::uint16_t>(batch.labels[i]));
      continue;
    }
    const double y = batch.y[i] + 0.0;
    ++exponents_[exponent_of(y)];
    y_.push_back(y);
    // A row beyond the scale changes the scale, and `rescale` then computes every q again.
    q_.push_back(exponent_of(y) <= exponent_ ? fixed_point(y, exponent_) : 0);
  }
}

void Table::append_weights(const Batch& batch, std::span<const std::size_t> rows) {
  const bool plain = batch.weights.empty() ||
                     std::ranges::all_of(rows, [&](auto i) { return batch.weights[i] == 1; });
  if (plain && weights_.empty()) {
    return;
  }
  weights_.resize(n_slots(), 1);
  for (const std::size_t i : rows) {
    weights_.push_back(batch.weights.empty() ? 1u : batch.weights[i]);
  }
}

bool Table::erase(std::span<const Slot> slots) noexcept {
  bool emptied = false;
  for (Column& column : columns_) {
    for (const Slot slot : slots) {
      column.erase(slot);
    }
  }
  for (const Slot slot : slots) {
    total_weight_ -= weight(slot);
    if (regression_) {
      const auto found = exponents_.find(exponent_of(y_[slot]));
      if (--found->second == 0) {
        exponents_.erase(found);
      }
      y_[slot] = 0.0;
      q_[slot] = 0;
    } else {
      class_weights_[labels_[slot]] -= weight(slot);
      emptied = emptied || class_weights_[labels_[slot]] == 0;
      labels_[slot] = 0;
    }
    if (!weights_.empty()) {
      weights_[slot] = 0;
    }
    if (!owners_.empty()) {
      owners_[slot] = 0;
    }
    alive_[slot] = 0;
  }
  n_rows_ -= slots.size();
  return emptied;
}

void Table::reweigh(std::span<const std::uint32_t> before, std::span<const std::uint32_t> after) {
  if (regression_ || before.size() < n_classes_ || after.size() < n_classes_) {
    refuse("one factor per class is needed");
  }
  std::uint64_t total = 0;
  for (Slot slot = 0; slot < n_slots(); ++slot) {
    const std::uint32_t code = labels_[slot];
    if (alive_[slot] != 0) {
      if (before[code] == 0 || after[code] == 0 || weight(slot) % before[code] != 0) {
        refuse("a weight is not a multiple of the factor of its class");
      }
      total += std::uint64_t{weight(slot)} / before[code] * after[code];
    }
  }
  if (total > kMaxWeight) {
    refuse("the weights sum to 2^31 or more; divide them by a common factor");
  }
  weights_.resize(n_slots(), 1);
  // Nothing below can fail.
  total_weight_ = total;
  std::ranges::fill(class_weights_, 0);
  for (Slot slot = 0; slot < n_slots(); ++slot) {
    if (alive_[slot] != 0) {
      weights_[slot] = weights_[slot] / before[labels_[slot]] * after[labels_[slot]];
      class_weights_[labels_[slot]] += weights_[slot];
    }
  }
}

Table Table::kept(std::span<const Slot> slots) const {
  Table table;
  table.regression_ = regression_;
  table.fixed_exponent_ = fixed_exponent_;
  table.n_classes_ = n_classes_;
  table.n_rows_ = n_rows_;
  table.total_weight_ = total_weight_;
  for (const Column& column : columns_) {
    table.columns_.push_back(column.kept(slots));
  }
  table.labels_ = kept_values(labels_, slots);
  table.class_weights_ = class_weights_;
  table.y_ = kept_values(y_, slots);
  table.q_ = kept_values(q_, slots);
  table.exponents_ = exponents_;
  table.exponent_ = exponent_;
  table.weights_ = kept_values(weights_, slots);
  table.owners_ = kept_values(owners_, slots);
  table.alive_.assign(slots.size(), 1);
  return table;
}

RowBlock Table::copy_held(std::span<const Slot> slots) const {
  if (std::ranges::any_of(slots,
                          [&](Slot slot) { return slot >= n_slots() || !is_alive(slot); })) {
    throw std::invalid_argument("slots must be held");
  }
  return copy(slots);
}

RowBlock Table::copy(std::span<const Slot> slots) const {
  RowBlock block;
  block.n_columns = columns_.size();
  block.slots.assign(slots.begin(), slots.end());
  block.x.resize(slots.size() * columns_.size());
  for (std::size_t j = 0; j < columns_.size(); ++j) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      block.x[i * columns_.size() + j] = columns_[j].at(slots[i]);
    }
  }
  block.labels.resize(slots.size());
  block.q.resize(slots.size());
  block.weights.resize(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    block.weights[i] = weight(slots[i]);
    if (regression_) {
      block.q[i] = q_[slots[i]];
    } else {
      block.labels[i] = labels_[slots[i]];
    }
  }
  return block;
}

bool Table::is_constant(std::size_t column,
                        const std::vector<std::uint8_t>& doomed) const noexcept {
  std::optional<std::uint32_t> first;
  for (Slot slot = 0; slot < n_slots(); ++slot) {
    if (alive_[slot] == 0 || doomed[slot] != 0) {
      continue;
    }
    const auto bits = std::bit_cast<std::uint32_t>(columns_[column].at(slot));
    if (first.value_or(bits) != bits) {
      return false;
    }
    first = bits;
  }
  return true;
}

void Table::move_columns(std::span<const std::int64_t> layout, std::span<const float> fills) {
  std::vector<Column> columns(layout.size());
  for (std::size_t j = 0; j < layout.size(); ++j) {
    if (layout[j] >= 0) {
      continue;
    }
    columns[j].assign(std::vector<float>(n_slots(), canonical(fills[j])));
    for (Slot slot = 0; slot < n_slots(); ++slot) {
      if (alive_[slot] == 0) {
        columns[j].erase(slot);
      }
    }
  }
  // Nothing below can fail.
  for (std::size_t j = 0; j < layout.size(); ++j) {
    if (layout[j] >= 0) {
      columns[j] = std::move(columns_[static_cast<std::size_t>(layout[j])]);
    }
  }
  columns_ = std::move(columns);
}

int Table::wanted_exponent(const std::map<int, std::size_t>& exponents) const noexcept {
  if (fixed_exponent_) {
    return *fixed_exponent_;
  }
  const bool all_zero = exponents.empty() || exponents.rbegin()->first == exponent_of(0.0);
  return all_zero ? 0 : exponents.rbegin()->first;
}

bool Table::rescale() noexcept {
  const int wanted = wanted_exponent(exponents_);
  if (!regression_ || wanted == exponent_) {
    return false;
  }
  exponent_ = wanted;
  for (std::size_t i = 0; i < q_.size(); ++i) {
    q_[i] = fixed_point(y_[i], exponent_);
  }
  return true;
}

bool Table::would_rescale(std::span<const Slot> leaving) const {
  if (!regression_) {
    return false;
  }
  auto exponents = exponents_;
  for (const Slot slot : leaving) {
    const auto found = exponents.find(exponent_of(y_[slot]));
    if (--found->second == 0) {
      exponents.erase(found);
    }
  }
  return wanted_exponent(exponents) != exponent_;
}

void Table::take_back(std::size_t n_slots, std::uint32_t n_classes) noexcept {
  for (std::size_t slot = n_slots; slot < alive_.size(); ++slot) {
    total_weight_ -= weight(static_cast<Slot>(slot));
    if (!regression_) {
      class_weights_[labels_[slot]] -= weight(static_cast<Slot>(slot));
    }
    --n_rows_;
  }
  class_weights_.resize(std::min<std::size_t>(class_weights_.size(), n_classes));
  alive_.resize(n_slots);
  truncate(n_slots);
  n_classes_ = n_classes;
}

std::size_t Table::n_bytes() const noexcept {
  std::size_t bytes = alive_.capacity() + labels_.capacity() * 2 + weights_.capacity() * 4 +
                      (y_.capacity() + q_.capacity() + owners_.capacity()) * 8;
  for (const Column& column : columns_) {
    bytes += column.n_bytes();
  }
  return bytes;
}

}  // namespace letheon
