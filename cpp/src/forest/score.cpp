#include "letheon/forest/score.hpp"

#include <array>
#include <bit>

namespace letheon::forest {

namespace {

constexpr int kFractionBits = 24;

// log2(x) with 24 fractional bits: squaring the mantissa doubles its logarithm, so each squaring
// yields one more bit.
std::int64_t log2_fixed(std::uint64_t x) noexcept {
  const auto exponent = static_cast<int>(std::bit_width(x)) - 1;
  std::uint64_t mantissa = x << (31 - exponent);
  std::int64_t result = exponent;
  for (int k = 0; k < kFractionBits; ++k) {
    mantissa = (mantissa * mantissa) >> 31;
    const bool bit = mantissa >= (std::uint64_t{1} << 32);
    mantissa >>= bit ? 1 : 0;
    result = 2 * result + (bit ? 1 : 0);
  }
  return result;
}

std::int64_t compute(std::int64_t x) noexcept {
  return x == 0 ? 0 : x * log2_fixed(static_cast<std::uint64_t>(x));
}

using SmallTable = std::array<std::int64_t, 65536>;

const SmallTable& small_table() noexcept {
  static const SmallTable table = [] {
    SmallTable values{};
    for (std::size_t x = 0; x < values.size(); ++x) {
      values[x] = compute(static_cast<std::int64_t>(x));
    }
    return values;
  }();
  return table;
}

}  // namespace

std::int64_t x_log_x(std::int64_t x) noexcept {
  const SmallTable& table = small_table();
  const auto index = static_cast<std::size_t>(x);
  return index < table.size() ? table[index] : compute(x);
}

}  // namespace letheon::forest
