#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "letheon/forest/table.hpp"

namespace letheon::forest {

namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// Distinct values met so far, up to a limit: open addressing over the bits of the value.
class FewValues {
 public:
  // The number of this value, or kMaxCodes when there are too many.
  std::size_t number_of(float value) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    std::size_t place = (bits * 0x9E3779B1u) >> 23;
    while (numbers_[place] != 0) {
      const std::size_t number = numbers_[place] - 1u;
      if (std::bit_cast<std::uint32_t>(values_[number]) == bits) {
        return number;
      }
      place = (place + 1) % numbers_.size();
    }
    if (size_ == Column::kMaxCodes) {
      return Column::kMaxCodes;
    }
    values_[size_] = value;
    numbers_[place] = static_cast<std::uint16_t>(++size_);
    return size_ - 1;
  }

  [[nodiscard]] std::span<const float> values() const noexcept { return {values_.data(), size_}; }

 private:
  std::array<std::uint16_t, 512> numbers_{};
  std::array<float, Column::kMaxCodes> values_{};
  std::size_t size_ = 0;
};

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

float canonical(float value) noexcept {
  return std::isnan(value) ? kMissing : value + 0.0f;
}

float MatrixView::at(std::size_t row, std::size_t column) const noexcept {
  const std::byte* place = data + static_cast<std::ptrdiff_t>(row) * row_stride +
                           static_cast<std::ptrdiff_t>(column) * column_stride;
  if (is_double) {
    return canonical(static_cast<float>(*reinterpret_cast<const double*>(place)));
  }
  return canonical(*reinterpret_cast<const float*>(place));
}

void Column::assign(std::vector<float> values) {
  if (encode(values)) {
    values_.clear();
    values_.shrink_to_fit();
  } else {
    values_ = std::move(values);
    has_missing_ = std::ranges::any_of(values_, [](float x) { return std::isnan(x); });
  }
}

bool Column::encode(std::span<const float> values) {
  FewValues few;
  bool missing = false;
  std::vector<std::uint8_t> codes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      codes[i] = kMissingCode;
      missing = true;
      continue;
    }
    const std::size_t number = few.number_of(values[i]);
    if (number == kMaxCodes) {
      coded_ = false;
      codes_ = {};
      table_ = {};
      uses_ = {};
      return false;
    }
    codes[i] = static_cast<std::uint8_t>(number);
  }
  const auto rank = ranks(few.values());
  table_.assign(few.values().begin(), few.values().end());
  std::ranges::sort(table_);
  uses_.assign(table_.size(), 0);
  for (std::uint8_t& code : codes) {
    if (code != kMissingCode) {
      code = rank[code];
      ++uses_[code];
    }
  }
  codes_ = std::move(codes);
  coded_ = true;
  has_missing_ = missing;
  return true;
}

std::vector<float> Column::decoded() const {
  std::vector<float> values(codes_.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = at(static_cast<Slot>(i));
  }
  return values;
}

void Column::append(std::span<const float> values) {
  if (codes_.empty() && values_.empty()) {
    assign({values.begin(), values.end()});
    return;
  }
  if (coded_) {
    std::vector<float> all = decoded();
    all.insert(all.end(), values.begin(), values.end());
    assign(std::move(all));
  } else {
    values_.insert(values_.end(), values.begin(), values.end());
    has_missing_ = has_missing_ ||
                   std::ranges::any_of(values, [](float x) { return std::isnan(x); });
  }
}

void Column::erase(Slot slot) noexcept {
  if (!coded_) {
    values_[slot] = 0.0f;
    return;
  }
  const std::uint8_t code = codes_[slot];
  codes_[slot] = 0;
  // The table must not remember a value that no remaining row has.
  if (code != kMissingCode && --uses_[code] == 0) {
    table_[code] = kMissing;
  }
}

Column Column::kept(std::span<const Slot> slots) const {
  std::vector<float> values(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    values[i] = at(slots[i]);
  }
  Column column;
  column.assign(std::move(values));
  return column;
}

void Column::truncate(std::size_t n_slots) noexcept {
  values_.resize(std::min(values_.size(), n_slots));
  while (codes_.size() > n_slots) {
    erase(static_cast<Slot>(codes_.size() - 1));
    codes_.pop_back();
  }
}

float Column::at(Slot slot) const noexcept {
  if (!coded_) {
    return values_[slot];
  }
  const std::uint8_t code = codes_[slot];
  return code == kMissingCode ? kMissing : table_[code];
}

std::size_t Column::n_bytes() const noexcept {
  return values_.capacity() * sizeof(float) + codes_.capacity() +
         table_.capacity() * (sizeof(float) + sizeof(std::uint32_t));
}

}  // namespace letheon::forest
