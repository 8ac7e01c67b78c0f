// Scores of splits: exact integers in, one defined rounding out.
#include <array>
#include <cmath>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/score.hpp"
#include "naive.hpp"
#include "people.hpp"

namespace {

using letheon::forest::Entropy;
using letheon::forest::Gini;
using letheon::forest::SquaredError;
using letheon::forest::x_log_x;
using letheon::testing::check;
using letheon::testing::Luck;
using letheon::testing::naive_x_log_x;

void logarithm_is_close(std::int64_t x) {
  const long double exact = static_cast<long double>(x) * std::log2(static_cast<long double>(x));
  const long double given = static_cast<long double>(x_log_x(x)) * 0x1p-24L;
  // Truncation alone loses less than one unit of 2^-24; the squarings a little more.
  check(given <= exact + 1e-9L * exact, "never above");
  check(exact - given <= static_cast<long double>(x) * 0x1p-22L, "four units below at most");
  check(x_log_x(x) == naive_x_log_x(x), "the rule to the bit");
}

void logarithms() {
  check(x_log_x(0) == 0 && x_log_x(1) == 0, "nothing and certainty");
  for (int e = 1; e < 31; ++e) {
    const std::int64_t power = std::int64_t{1} << e;
    check(x_log_x(power) == power * e * (1 << 24), "powers of two are exact");
    logarithm_is_close(power + 1);
    logarithm_is_close(power - 1 + (e == 1 ? 1 : 0));
  }
  Luck luck(1);
  for (int i = 0; i < 20000; ++i) {
    logarithm_is_close(1 + luck.below((std::uint64_t{1} << 31) - 1) % (1u << (1 + i % 31)));
  }
  for (std::int64_t x = 65530; x < 65542; ++x) {
    logarithm_is_close(x);  // where the table ends
  }
}

void more_is_more() {
  for (std::int64_t x = 1; x < 70000; ++x) {
    check(x_log_x(x + 1) > x_log_x(x), "x log x ascends");
  }
}

void gini_rounds_once_per_step() {
  Luck luck(2);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t limit = std::uint64_t{1} << (1 + i % 29);
    std::array<std::int64_t, 3> left{};
    std::array<std::int64_t, 3> right{};
    __extension__ unsigned __int128 a = 0;
    __extension__ unsigned __int128 b = 0;
    std::int64_t n_left = 0;
    std::int64_t n_right = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      left[c] = 1 + luck.below(limit);
      right[c] = 1 + luck.below(limit);
      n_left += left[c];
      n_right += right[c];
      a += static_cast<std::uint64_t>(left[c]) * static_cast<std::uint64_t>(left[c]);
      b += static_cast<std::uint64_t>(right[c]) * static_cast<std::uint64_t>(right[c]);
    }
    const double wanted = static_cast<double>(a) / static_cast<double>(n_left) +
                          static_cast<double>(b) / static_cast<double>(n_right);
    check(Gini::of(left, right, n_left, n_right) == wanted, "sums are exact");
  }
}

void the_largest_counts_do_not_overflow() {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 2;
  const std::array<std::int64_t, 2> all{kMost, 0};
  const std::array<std::int64_t, 2> one{0, 1};
  check(Gini::of(all, one, kMost, 1) == static_cast<double>(kMost) + 1.0, "gini");
  check(Entropy::of(all, one, kMost, 1) == 0, "entropy: both sides are pure");
  const std::array<std::int64_t, 2> sums{kMost, kMost * (std::int64_t{1} << 31)};
  check(std::isfinite(SquaredError::of(sums, sums, kMost, kMost)), "squared error");
}

void entropy_prefers_purity() {
  const std::array<std::int64_t, 2> pure{10, 0};
  const std::array<std::int64_t, 2> other{0, 10};
  const std::array<std::int64_t, 2> mixed{5, 5};
  check(Entropy::of(pure, other, 10, 10) == 0, "pure sides");
  check(Entropy::of(mixed, mixed, 10, 10) == -20 * (1 << 24), "one bit per row");
}

}  // namespace

int main() {
  logarithms();
  more_is_more();
  gini_rounds_once_per_step();
  the_largest_counts_do_not_overflow();
  entropy_prefers_purity();
  return letheon::testing::result();
}
