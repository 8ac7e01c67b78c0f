// Exact sums of columns: values by hand, carries, undoing, bytes, and rounding with a key.
#include "letheon/common/sums.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "checks.hpp"

namespace {

using letheon::sums::ColumnSums;
using letheon::testing::check;
using letheon::testing::check_refused;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

ColumnSums sums_of(const std::vector<double>& column) {
  ColumnSums sums(1);
  sums.add({column.data(), column.size()});
  return sums;
}

bool is_same(const ColumnSums& a, const ColumnSums& b) {
  return a.sum_bytes() == b.sum_bytes() && a.square_bytes() == b.square_bytes() &&
         std::vector(a.counts().begin(), a.counts().end()) ==
             std::vector(b.counts().begin(), b.counts().end());
}

void values() {
  check(sums_of({1e300, 1.0, -1e300}).sums()[0] == 1.0, "a small number between large ones");
  check(sums_of({kLargest, kLargest, -kLargest}).sums()[0] == kLargest, "beyond the largest");
  check(std::isinf(sums_of({kLargest, kLargest}).sums()[0]), "too large");
  check(sums_of({kSmallest, kSmallest}).means()[0] == kSmallest, "the smallest number");
  check(!std::signbit(sums_of({-kSmallest, 0.0, 0.0}).means()[0]), "no negative zero");
  check(sums_of({1.7e9, 1.7e9 + 2, kNaN}).variances()[0] == 1.0, "a large mean");
  check(sums_of({kNaN, 4.0}).counts()[0] == 1, "a missing value is not counted");
  check(std::isnan(sums_of({kNaN}).means()[0]), "no values");
  // 2^53 + 1 is no double: a tie, and a bit above it.
  check(sums_of({0x1p53, 1.0}).sums()[0] == 0x1p53, "a tie to even");
  check(sums_of({0x1p53, 1.0, kSmallest}).sums()[0] == 0x1p53 + 2, "above a tie");
  check(sums_of({0x1p53, 3.0}).sums()[0] == 0x1p53 + 4, "a tie to even, up");
  check(sums_of({1.0, 0.0, 0.0}).means()[0] == 1.0 / 3.0, "a quotient");
}

void rows_leave_no_trace() {
  std::mt19937_64 random(7);
  std::vector<double> X(5000);
  for (double& x : X) {
    x = std::ldexp(static_cast<double>(random()) - 0x1p63, static_cast<int>(random() % 1900) - 1000);
  }
  ColumnSums sums(1);
  sums.add({X.data(), 5000});
  sums.subtract({X.data() + 100, 4900});
  const ColumnSums expected = sums_of({X.begin(), X.begin() + 100});
  check(is_same(sums, expected), "the sums of the remaining rows");
  const ColumnSums again(expected.counts(), expected.sum_bytes(), expected.square_bytes());
  check(is_same(again, expected), "bytes and back");
  sums.subtract({X.data(), 100});
  check(is_same(sums, ColumnSums(1)), "nothing remains");
}

void carries_do_not_overflow() {
  const double x = -std::nextafter(0x1p31, 0.0);
  const std::vector<double> column(30000, x);
  const ColumnSums sums = sums_of(column);
  check(sums.means()[0] == x, "the mean of equal numbers");
  check(sums.variances()[0] == 0.0, "the variance of equal numbers");
}

void sparse_rows() {
  // Rows (1, 0, NaN), (0, 0, 0), (1e300, -2, 0).
  const std::array<std::int64_t, 4> begins{0, 2, 2, 4};
  const std::array<std::int64_t, 4> columns{0, 2, 0, 1};
  std::array<double, 4> values{1.0, kNaN, 1e300, -2.0};
  const std::array<double, 9> dense{1.0, 0.0, kNaN, 0.0, 0.0, 0.0, 1e300, -2.0, 0.0};
  ColumnSums expected(3);
  expected.add({dense.data(), 3});
  ColumnSums sums(3);
  sums.add({begins, columns, values});
  check(is_same(sums, expected), "sparse rows");
  const std::array<std::int64_t, 4> unsorted{2, 0, 0, 1};
  check_refused([&] { sums.add({begins, unsorted, values}); }, "columns that decrease");
  check_refused([&] { ColumnSums(2).add({begins, columns, values}); }, "a column that is missing");
  check_refused([&] { sums.add({std::span(begins).first(3), columns, values}); }, "too many values");
  values[3] = std::numeric_limits<double>::infinity();
  check_refused([&] { sums.subtract({begins, columns, values}); }, "infinity in a sparse row");
  check(is_same(sums, expected), "nothing has changed");
  values[3] = -2.0;
  sums.subtract({begins, columns, values});
  check(is_same(sums, ColumnSums(3)), "nothing remains of sparse rows");
}

void bad_input_changes_nothing() {
  std::vector<double> column(1000, 0.1);
  ColumnSums sums = sums_of(column);
  const ColumnSums before = sums;
  column[999] = -std::numeric_limits<double>::infinity();
  check_refused([&] { sums.add({column.data(), column.size()}); }, "infinity, added");
  check_refused([&] { sums.subtract({column.data(), column.size()}); }, "infinity, subtracted");
  check(is_same(sums, before), "unchanged");
  const std::array<std::int64_t, 1> outside{1};
  check_refused([&] { static_cast<void>(sums.select(outside)); }, "a column that is missing");
  check_refused([&] { ColumnSums(sums.counts(), {}, {}); }, "no bytes");
  check_refused([&] { static_cast<void>(sums.round({}, {}, {})); }, "no dithers");
}

void rounding() {
  check(letheon::sums::power_of_two(0) == std::uint64_t{1} << 63, "2^0");
  check(letheon::sums::power_of_two(std::uint64_t{1} << 63) == 0xB504F333F9DE6484, "2^(1/2)");
  const std::array<std::uint64_t, 1> none{0};
  const std::array<std::uint64_t, 1> half{std::uint64_t{1} << 63};
  const std::array<std::uint64_t, 1> all{~std::uint64_t{0}};
  const ColumnSums sums = sums_of({-1.0, -2.0, -4.0, -5.0});  // mean -3, variance 2.5
  check(sums.round(none, none, {0, 1}).exponents[0] == 1, "up: 1.58 >= 1");
  check(sums.round(half, none, {0, 1}).exponents[0] == 1, "up: 1.58 >= 1.41");
  check(sums.round(all, none, {0, 1}).exponents[0] == 0, "not up: 1.58 < 2");
  check(sums.round(none, none, {0, 1}).centres[0] == -4.0, "-1.5 down");
  check(sums.round(none, half, {0, 1}).centres[0] == -2.0, "-1.5 + 0.5");
  check(sums.round(none, none, {1, 1}).centres[0] == -3.0, "a finer grid");
  check(sums_of({0.1, 0.1, 0.1}).round(half, half, {0, 1}).centres[0] == 0.1, "a constant");
  check(sums.round(all, none, {0, 2}).exponents[0] == 0, "steps of 2: 2.5 < 16");
  check(sums.round(none, none, {0, 2}).exponents[0] == 2, "steps of 2: 2.5 >= 1");
  check(sums.round(none, none, {-3, 1}).centres[0] == -16.0, "a coarser grid");
  check_refused([&] { static_cast<void>(sums.round(none, none, {0, 0})); }, "no step");
  const auto wide = sums_of({kLargest, -kLargest}).round(none, all, {0, 1});
  check(wide.exponents[0] == 1022 && wide.centres[0] == 0.0, "the largest scale");
  check(sums_of({kSmallest, 0.0}).round(none, all, {0, 1}).exponents[0] == -1022, "the smallest scale");
}

}  // namespace

int main() {
  values();
  rows_leave_no_trace();
  carries_do_not_overflow();
  sparse_rows();
  bad_input_changes_nothing();
  rounding();
  return letheon::testing::result();
}
