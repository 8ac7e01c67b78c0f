// Natural numbers of a few thousand bits, without allocation.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace letheon::sums {

__extension__ using Wide = unsigned __int128;

struct Division;

// Digits of 32 bits; the value is the number of the digits times 2^(32 * low), and `low` may be
// negative. Callers keep results below kCapacity digits.
class Natural {
 public:
  static constexpr std::size_t kCapacity = 160;

  explicit Natural(int low) noexcept : low_(low) {}

  static Natural from(std::uint64_t value) noexcept {
    Natural out(0);
    out.push(static_cast<std::uint32_t>(value));
    out.push(static_cast<std::uint32_t>(value >> 32));
    out.trim();
    return out;
  }

  void push(std::uint32_t digit) noexcept { digits_[size_++] = digit; }

  void trim() noexcept {
    while (size_ > 0 && digits_[size_ - 1] == 0) {
      --size_;
    }
  }

  [[nodiscard]] bool is_zero() const noexcept { return size_ == 0; }

  // The highest set bit has the weight 2^(bits() - 1). Not defined for zero.
  [[nodiscard]] int bits() const noexcept {
    return 32 * (low_ + static_cast<int>(size_)) - std::countl_zero(digits_[size_ - 1]);
  }

  [[nodiscard]] Natural operator+(const Natural& other) const noexcept;
  // Not defined when `other` is larger.
  [[nodiscard]] Natural operator-(const Natural& other) const noexcept;
  [[nodiscard]] Natural operator*(const Natural& other) const noexcept;
  // Of an integer: `low` is at least 0.
  [[nodiscard]] Division operator/(std::uint64_t divisor) const noexcept;
  [[nodiscard]] bool operator<(const Natural& other) const noexcept;

  // Times 2^bits.
  [[nodiscard]] Natural shifted(int bits) const noexcept;
  [[nodiscard]] Natural floor() const noexcept;
  [[nodiscard]] Natural ceil() const noexcept;

  // Value times 2^exponent, rounded to nearest, ties to even. `has_more`: the exact value is a
  // little larger; the number must then have at least 64 bits.
  [[nodiscard]] double to_double(int exponent, bool has_more) const noexcept;

 private:
  [[nodiscard]] int top() const noexcept { return low_ + static_cast<int>(size_); }

  [[nodiscard]] std::uint32_t digit(int place) const noexcept {
    return place < low_ || place >= top() ? 0 : digits_[static_cast<std::size_t>(place - low_)];
  }

  [[nodiscard]] bool has_bit_below(int place) const noexcept;

  std::array<std::uint32_t, kCapacity> digits_;
  std::size_t size_ = 0;
  int low_;
};

struct Division {
  Natural quotient;
  bool has_rest;
};

}  // namespace letheon::sums
