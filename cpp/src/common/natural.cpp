#include "natural.hpp"

namespace letheon::sums {
namespace {

int floor_div(int value, int divisor) noexcept {
  return value >= 0 ? value / divisor : -((divisor - 1 - value) / divisor);
}

}  // namespace

Natural Natural::operator+(const Natural& other) const noexcept {
  if (is_zero()) {
    return other;
  }
  if (other.is_zero()) {
    return *this;
  }
  Natural out(std::min(low_, other.low_));
  std::uint64_t carry = 0;
  for (int place = out.low_; place < std::max(top(), other.top()); ++place) {
    carry += std::uint64_t{digit(place)} + other.digit(place);
    out.push(static_cast<std::uint32_t>(carry));
    carry >>= 32;
  }
  out.push(static_cast<std::uint32_t>(carry));
  out.trim();
  return out;
}

Natural Natural::operator-(const Natural& other) const noexcept {
  if (other.is_zero()) {
    return *this;
  }
  Natural out(std::min(low_, other.low_));
  std::int64_t carry = 0;
  for (int place = out.low_; place < top(); ++place) {
    carry += std::int64_t{digit(place)} - other.digit(place);
    out.push(static_cast<std::uint32_t>(carry & 0xFFFFFFFF));
    carry >>= 32;
  }
  out.trim();
  return out;
}

Natural Natural::operator*(const Natural& other) const noexcept {
  Natural out(low_ + other.low_);
  out.size_ = is_zero() || other.is_zero() ? 0 : size_ + other.size_;
  std::fill_n(out.digits_.begin(), out.size_, 0U);
  for (std::size_t i = 0; out.size_ > 0 && i < size_; ++i) {
    std::uint64_t carry = 0;
    for (std::size_t k = 0; k < other.size_; ++k) {
      carry += std::uint64_t{digits_[i]} * other.digits_[k] + out.digits_[i + k];
      out.digits_[i + k] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    out.digits_[i + other.size_] = static_cast<std::uint32_t>(carry);
  }
  out.trim();
  return out;
}

Division Natural::operator/(std::uint64_t divisor) const noexcept {
  Division out{Natural(0), false};
  out.quotient.size_ = is_zero() ? 0 : static_cast<std::size_t>(top());
  Wide rest = 0;
  for (std::size_t k = out.quotient.size_; k-- > 0;) {
    rest = rest << 32 | digit(static_cast<int>(k));
    out.quotient.digits_[k] = static_cast<std::uint32_t>(rest / divisor);
    rest %= divisor;
  }
  out.quotient.trim();
  out.has_rest = rest != 0;
  return out;
}

bool Natural::operator<(const Natural& other) const noexcept {
  if (is_zero() || other.is_zero()) {
    return is_zero() && !other.is_zero();
  }
  for (int place = std::max(top(), other.top()); place-- > std::min(low_, other.low_);) {
    if (digit(place) != other.digit(place)) {
      return digit(place) < other.digit(place);
    }
  }
  return false;
}

Natural Natural::shifted(int bits) const noexcept {
  const int places = floor_div(bits, 32);
  const int rest = bits - 32 * places;
  Natural out(low_ + places);
  std::uint64_t carry = 0;
  for (std::size_t k = 0; k < size_; ++k) {
    carry |= std::uint64_t{digits_[k]} << rest;
    out.push(static_cast<std::uint32_t>(carry));
    carry >>= 32;
  }
  out.push(static_cast<std::uint32_t>(carry));
  out.trim();
  return out;
}

Natural Natural::floor() const noexcept {
  Natural out(std::max(low_, 0));
  for (int place = out.low_; place < top(); ++place) {
    out.push(digit(place));
  }
  return out;
}

Natural Natural::ceil() const noexcept {
  return has_bit_below(0) ? floor() + Natural::from(1) : floor();
}

bool Natural::has_bit_below(int place) const noexcept {
  const int whole = floor_div(place, 32);
  for (int k = low_; k < std::min(whole, top()); ++k) {
    if (digit(k) != 0) {
      return true;
    }
  }
  const std::uint32_t mask = (std::uint32_t{1} << (place - 32 * whole)) - 1;
  return (digit(whole) & mask) != 0;
}

double Natural::to_double(int exponent, bool has_more) const noexcept {
  if (is_zero()) {
    return 0.0;
  }
  // The last place of the result: 53 bits, fewer for subnormal numbers.
  const int last = std::max(bits() + exponent - 53, -1074);
  const int dropped = last - exponent;  // bits of this number that the result does not have
  const Natural kept = shifted(-dropped).floor();
  std::uint64_t mantissa =
      kept.is_zero() ? 0 : std::uint64_t{kept.digit(1)} << 32 | kept.digit(0);
  const int half_place = floor_div(dropped - 1, 32);
  const bool is_half = (digit(half_place) >> (dropped - 1 - 32 * half_place) & 1) != 0;
  const bool is_above = has_more || has_bit_below(dropped - 1);
  if (is_half && (is_above || (mantissa & 1) != 0)) {
    ++mantissa;
  }
  return std::ldexp(static_cast<double>(mantissa), last);
}

}  // namespace letheon::sums
