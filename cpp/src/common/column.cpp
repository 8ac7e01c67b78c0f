#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "letheon/common/clones.hpp"
#include "letheon/common/table.hpp"

namespace letheon {

namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kTooMany = Column::kMaxCodes + 1;  // in place of a code

constexpr std::size_t kTogether = Column::kWordRows;  // values that are looked at together

// Whether none of the values is missing or infinite.
LETHEON_VECTOR
bool are_finite(const float* values, std::size_t n) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000u;
  std::uint32_t infinite = 0;
  for (std::size_t i = 0; i < n; ++i) {
    infinite |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return infinite == 0;
}

struct Match {
  std::uint64_t word;  // bit i: values[i] == high
  bool all;            // all values are low or high
};

LETHEON_VECTOR
Match match(const float* values, float low, float high) noexcept {
  Match found{0, true};
  std::uint32_t odd = 0;
  for (std::size_t i = 0; i < kTogether; ++i) {
    const bool is_high = values[i] == high;  // no two values are equal by other bits
    odd |= is_high || values[i] == low ? 0u : 1u;
    found.word |= std::uint64_t{is_high ? 1u : 0u} << i;
  }
  found.all = odd == 0;
  return found;
}

constexpr std::size_t kFewValues = 8;

// Writes the codes of kTogether values if all are among these distinct ones, and counts them.
LETHEON_VECTOR
bool find_few(const float* values, const float* distinct, std::size_t n_distinct,
              std::uint8_t* codes, std::uint32_t* uses) noexcept {
  std::uint32_t all[kTogether];
  for (std::size_t i = 0; i < kTogether; ++i) {
    all[i] = kTooMany;
  }
  std::uint32_t counts[kFewValues] = {};
  for (std::size_t k = 0; k < n_distinct; ++k) {
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < kTogether; ++i) {
      const bool equal = values[i] == distinct[k];  // no two values are equal by other bits
      all[i] = equal ? static_cast<std::uint32_t>(k) : all[i];
      count += equal ? 1u : 0u;
    }
    counts[k] = count;
  }
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < kTogether; ++i) {
    most = std::max(most, all[i]);
    codes[i] = static_cast<std::uint8_t>(all[i]);
  }
  for (std::size_t k = 0; most < kTooMany && k < n_distinct; ++k) {
    uses[k] += counts[k];
  }
  return most < kTooMany;
}

// rank[k] = position of values[k] in ascending order.
std::vector<std::uint8_t> ranks(std::span<const float> values) {
  std::vector<std::uint8_t> order(values.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    order[k] = static_cast<std::uint8_t>(k);
  }
  std::ranges::sort(order, [&](auto a, auto b) { return values[a] < values[b]; });
  std::vector<std::uint8_t> rank(values.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    rank[order[k]] = static_cast<std::uint8_t>(k);
  }
  return rank;
}

}  // namespace

void MatrixView::validate() const {
  const auto n = static_cast<std::int64_t>(n_rows);
  const bool fits = !is_sparse() || (begins.size() == n_columns + 1 && begins.front() == 0 &&
                                     begins.back() == std::ssize(places));
  if (!fits || !std::ranges::is_sorted(begins) ||
      std::ranges::any_of(places, [=](std::int64_t place) { return place < 0 || place >= n; })) {
    throw std::invalid_argument("the columns of a sparse X are damaged");
  }
}

std::vector<float> MatrixView::sparse_column(std::size_t column) const {
  std::vector<float> values(n_rows, 0.0f);
  const MatrixView entries{data, places.size(), 1, row_stride, 0, is_double};
  for (auto k = begins[column]; k < begins[column + 1]; ++k) {
    const auto entry = static_cast<std::size_t>(k);
    values[static_cast<std::size_t>(places[entry])] = entries.at(entry, 0);
  }
  return values;
}

// kTooMany if there are too many values.
std::size_t Column::Builder::code_of(float value) noexcept {
  if (std::isnan(value)) {
    return kMissingCode;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::size_t place = (bits * 0x9E3779B1u) >> 23;
  for (; places_[place] != 0; place = (place + 1) % places_.size()) {
    const std::size_t code = places_[place] - 1u;
    if (std::bit_cast<std::uint32_t>(distinct_[code]) == bits) {
      return code;
    }
  }
  if (distinct_.size() < kMissingCode) {
    distinct_.push_back(value);
    places_[place] = static_cast<std::uint16_t>(distinct_.size());
    return distinct_.size() - 1;
  }
  return kTooMany;
}

bool Column::Builder::add(std::span<const float> values) {
  bool all_finite = true;
  for (std::size_t begin = 0; begin < values.size(); begin += kTogether) {
    const auto part = values.subspan(begin, std::min(kTogether, values.size() - begin));
    all_finite = are_finite(part.data(), part.size()) && all_finite;
    if (kind_ == Kind::bits && pack(part)) {
      continue;
    }
    if (kind_ == Kind::codes) {
      add_codes(part);
    } else {
      values_.insert(values_.end(), part.begin(), part.end());
    }
  }
  has_missing_ = has_missing_ || !all_finite;
  return all_finite;
}

void Column::Builder::add_word(std::uint64_t word) {
  words_.push_back(word);
  n_ += kWordRows;
}

// Adds at most kTogether values as one word. Adds none, and leaves the bits, if the column has more
// than two distinct values then, or a missing one.
bool Column::Builder::pack(std::span<const float> values) {
  words_.reserve((n_rows_ + kWordRows - 1) / kWordRows);
  if (values.size() == kWordRows) {
    const Match found = match(values.data(), low(), high());
    if (found.all) {
      add_word(found.word);
      return true;
    }
  }
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t code = code_of(values[i]);
    if (code > 1) {
      leave_bits();
      return false;
    }
    word |= std::uint64_t{code} << i;
  }
  words_.push_back(word);
  n_ += values.size();
  return true;
}

void Column::Builder::leave_bits() {
  codes_.resize(n_);
  for (std::size_t i = 0; i < n_; ++i) {
    codes_[i] = static_cast<std::uint8_t>((words_[i / kWordRows] >> (i % kWordRows)) & 1u);
    ++uses_[codes_[i]];
  }
  words_ = {};
  kind_ = Kind::codes;
}

// Makes room for n codes. At first for few rows: most columns of floats soon have too many values.
void Column::Builder::make_room(std::size_t n) {
  constexpr std::size_t kFirst = 4096;
  if (n_ + n > codes_.size()) {
    codes_.resize(n_ + n <= kFirst ? std::min(n_rows_, kFirst) : n_rows_);
  }
}

void Column::Builder::add_codes(std::span<const float> values) {
  make_room(values.size());
  const bool is_few = values.size() == kTogether && distinct_.size() <= kFewValues &&
                      find_few(values.data(), distinct_.data(), distinct_.size(),
                               codes_.data() + n_, uses_.data());
  n_ += is_few ? kTogether : 0;
  for (std::size_t i = is_few ? kTogether : 0; i < values.size(); ++i) {
    const std::size_t code = code_of(values[i]);
    if (code == kTooMany) {
      leave_codes();
      values_.insert(values_.end(), values.begin() + static_cast<std::ptrdiff_t>(i), values.end());
      return;
    }
    codes_[n_++] = static_cast<std::uint8_t>(code);
    ++uses_[code];
  }
}

void Column::Builder::leave_codes() {
  values_.reserve(n_rows_);
  for (std::size_t i = 0; i < n_; ++i) {
    values_.push_back(codes_[i] == kMissingCode ? kMissing : distinct_[codes_[i]]);
  }
  codes_ = {};
  kind_ = Kind::floats;
}

Column Column::Builder::finish() {
  Column column;
  column.kind_ = kind_;
  column.has_missing_ = has_missing_;
  if (kind_ == Kind::floats) {
    column.values_ = std::move(values_);
    return column;
  }
  const bool is_sorted = std::ranges::is_sorted(distinct_);
  if (kind_ == Kind::bits) {
    column.n_packed_ = n_;
    std::size_t n_high = 0;
    for (std::uint64_t& word : words_) {
      word = is_sorted ? word : ~word;
      n_high += static_cast<std::size_t>(std::popcount(word));
    }
    if (const std::size_t unused = n_ % kWordRows; unused != 0 && !is_sorted) {
      const std::uint64_t beyond = ~std::uint64_t{0} << unused;
      words_.back() &= ~beyond;
      n_high -= kWordRows - unused;
    }
    std::ranges::sort(distinct_);
    column.uses_ = {static_cast<std::uint32_t>(n_ - n_high), static_cast<std::uint32_t>(n_high)};
    column.words_ = std::move(words_);
    column.table_ = std::move(distinct_);
    return column;
  }
  codes_.resize(n_);
  const auto rank = ranks(distinct_);
  if (!is_sorted) {
    std::ranges::sort(distinct_);
    for (std::uint8_t& code : codes_) {
      code = code == kMissingCode ? code : rank[code];
    }
  }
  column.uses_.resize(rank.size());
  for (std::size_t k = 0; k < rank.size(); ++k) {
    column.uses_[rank[k]] = uses_[k];
  }
  column.table_ = std::move(distinct_);
  column.codes_ = std::move(codes_);
  return column;
}

void Column::assign(std::span<const float> values) {
  Builder builder(values.size());
  builder.add(values);
  *this = builder.finish();
}

std::size_t Column::size() const noexcept {
  return kind_ == Kind::bits ? n_packed_ : codes_.size() + values_.size();
}

std::vector<float> Column::decoded() const {
  std::vector<float> values(size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = at(static_cast<Slot>(i));
  }
  return values;
}

void Column::append(Column later) {
  if (size() == 0) {
    *this = std::move(later);
    return;
  }
  const std::vector<float> values = later.decoded();
  if (kind_ == Kind::floats) {
    values_.insert(values_.end(), values.begin(), values.end());
    has_missing_ = has_missing_ || later.has_missing_;
    return;
  }
  std::vector<float> all = decoded();
  all.insert(all.end(), values.begin(), values.end());
  assign(all);
}

void Column::erase(Slot slot) noexcept {
  if (kind_ == Kind::floats) {
    values_[slot] = 0.0f;
    return;
  }
  std::uint8_t code;
  if (kind_ == Kind::bits) {
    std::uint64_t& word = words_[slot / kWordRows];
    const std::uint64_t bit = std::uint64_t{1} << (slot % kWordRows);
    code = (word & bit) != 0 ? 1 : 0;
    word &= ~bit;
  } else {
    code = codes_[slot];
    codes_[slot] = 0;
  }
  // The table must not remember a value that no remaining row has.
  if (code != kMissingCode && --uses_[code] == 0) {
    table_[code] = kMissing;
  }
}

void Column::fetch(Slot slot) const noexcept {
  if (kind_ == Kind::floats) {
    __builtin_prefetch(values_.data() + slot, 1);
    return;
  }
  if (kind_ == Kind::bits) {
    __builtin_prefetch(words_.data() + slot / kWordRows, 1);
  } else {
    __builtin_prefetch(codes_.data() + slot, 1);
  }
  __builtin_prefetch(uses_.data(), 1);
}

Column Column::kept(std::span<const Slot> slots) const {
  std::vector<float> values(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    values[i] = at(slots[i]);
  }
  Column column;
  column.assign(values);
  return column;
}

void Column::truncate(std::size_t n_slots) noexcept {
  while (is_coded() && size() > n_slots) {
    erase(static_cast<Slot>(size() - 1));
    if (kind_ == Kind::bits) {
      --n_packed_;
    } else {
      codes_.pop_back();
    }
  }
  words_.resize(kind_ == Kind::bits ? (n_packed_ + kWordRows - 1) / kWordRows : 0);
  values_.resize(std::min(values_.size(), n_slots));
}

float Column::at(Slot slot) const noexcept {
  if (kind_ == Kind::floats) {
    return values_[slot];
  }
  return read_codes([&](auto code_of) {
    const std::uint8_t code = code_of(slot);
    return code == kMissingCode ? kMissing : table_[code];
  });
}

std::size_t Column::n_bytes() const noexcept {
  return values_.capacity() * sizeof(float) + codes_.capacity() +
         words_.capacity() * sizeof(std::uint64_t) +
         table_.capacity() * (sizeof(float) + sizeof(std::uint32_t));
}

}  // namespace letheon
