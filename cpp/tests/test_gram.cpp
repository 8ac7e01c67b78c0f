// Rows on a grid and their products: slices by hand, clipped values, and products of integers.
#include "letheon/common/gram.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "checks.hpp"

namespace {

using letheon::testing::check;
using letheon::testing::check_refused;

struct Sliced {
  double high = 0.0;
  double low = 0.0;
  std::int64_t n_clipped = 0;
};

Sliced slice(double x, double factor, double shift, double root) {
  Sliced out;
  const std::array<double, 1> factors{factor};
  const std::array<double, 1> shifts{shift};
  const std::array<double, 1> roots{root};
  letheon::sums::quantise({&x, 1, 1, 1}, factors, shifts, roots, {&out.high, 1, 1, 1},
                          {&out.low, 1, 1, 1}, {&out.n_clipped, 1});
  return out;
}

void slices() {
  constexpr double kUnit = 0x1p-20;
  check(slice(5 * kUnit, 1.0, 0.0, 1.0).low == 5.0, "a low part");
  check(slice(2.5 * kUnit, 1.0, 0.0, 1.0).low == 2.0, "ties to even");
  const Sliced one = slice(3.0, 0.5, 0.5, 1.0);
  check(one.high == 16.0 && one.low == 0.0, "(3 * 0.5 - 0.5) * 2^20 = 16 * 2^16");
  check(slice(3.0, 0.5, 0.5, 2.0).high == 32.0, "a weight");
  const Sliced large = slice(-1e300, 1.0, 0.0, 1.0);
  check(large.high * 65536.0 + large.low == -1073741823.0 && large.n_clipped == 1, "clipped");
  check(slice(1000.0, 1.0, 0.0, 1.0).n_clipped == 0, "within the range");
}

void products() {
  const std::array<double, 4> high{2.0, -3.0, 0.0, 1.0};  // two rows of two columns
  const std::array<double, 4> low{5.0, 7.0, 0.0, -1.0};
  std::vector<std::int64_t> sums(12);
  letheon::sums::add_products({high.data(), 2, 2, 2}, {low.data(), 2, 2, 2}, 1, sums);
  check(sums[0] == 4 && sums[1] == -6 && sums[3] == 10, "high times high");
  check(sums[4] == 20 && sums[5] == 2 * 7 - 3 * 5 && sums[7] == -44, "mixed");
  check(sums[8] == 25 && sums[10] == 35 && sums[11] == 50, "low times low");
  letheon::sums::add_products({high.data(), 2, 2, 2}, {low.data(), 2, 2, 2}, -1, sums);
  check(sums == std::vector<std::int64_t>(12), "nothing remains");
  sums.resize(11);
  check_refused(
      [&] {
        letheon::sums::add_products({high.data(), 2, 2, 2}, {low.data(), 2, 2, 2}, 1, sums);
      },
      "another size");
}

void sparse_products() {
  const std::array<std::int64_t, 3> begins{0, 2, 3};
  const std::array<std::int64_t, 3> columns{0, 2, 1};
  const std::array<std::int64_t, 3> high{2, 0, 4};
  const std::array<std::int64_t, 3> low{1, 3, 0};
  std::vector<std::int64_t> sums(27);
  std::vector<double> floats(9);
  const auto add = [&](std::size_t n_columns) {
    letheon::sums::add_sparse_products(begins, columns, high, low, 1, n_columns, sums, floats);
  };
  add(3);
  check(sums[0] == 4 && sums[2] == 0 && sums[4] == 16, "high times high");
  check(sums[9] == 4 && sums[9 + 2] == 6 && sums[9 + 6] == 6, "mixed");
  check(sums[18] == 1 && sums[18 + 2] == 3 && sums[18 + 8] == 9 && sums[18 + 4] == 0,
        "low times low");
  check(floats[0] == 0x4p-8 + 0x4p-24 + 0x1p-40 && floats[2] == 0x6p-24 + 0x3p-40 && floats[1] == 0.0,
        "doubles");
  floats.resize(8);
  check_refused([&] { add(3); }, "another number of doubles");
  floats.clear();
  add(3);
  check(sums[0] == 8, "without doubles");
  sums.resize(12);
  check_refused([&] { add(2); }, "a column that is missing");
}

}  // namespace

int main() {
  sparse_products();
  slices();
  products();
  return letheon::testing::result();
}
