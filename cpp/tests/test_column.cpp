// Columns of X: few values by code, many as they are, and nothing left of what was erased.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "checks.hpp"
#include "letheon/common/table.hpp"
#include "people.hpp"

namespace {

using letheon::Column;
using letheon::Slot;
using letheon::testing::check;
using letheon::testing::kMissing;
using letheon::testing::Luck;

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool holds(const Column& column, const std::vector<float>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!same(column.at(static_cast<Slot>(i)), wanted[i])) {
      return false;
    }
  }
  return true;
}

// The value lies nowhere in the column's memory.
bool is_gone(const Column& column, std::size_t n_slots, float value) {
  const auto is_it = [=](float x) { return x == value; };
  const bool in_table = std::ranges::any_of(column.table(), is_it);
  const bool in_values =
      !column.is_coded() && std::any_of(column.values(), column.values() + n_slots, is_it);
  return !in_table && !in_values;
}

Column column_of(const std::vector<float>& values) {
  Column column;
  column.assign(values);
  return column;
}

std::vector<float> ascending(std::size_t n) {
  std::vector<float> values;
  for (std::size_t i = 0; i < n; ++i) {
    values.push_back(static_cast<float>(i) * 0.5f - 3.0f);
  }
  return values;
}

void coded_up_to_the_limit() {
  for (const std::size_t n : {1u, 2u, 254u, 255u, 256u, 700u}) {
    for (const bool missing : {false, true}) {
      std::vector<float> values = ascending(n);
      std::ranges::reverse(values);
      values.insert(values.end(), values.begin(), values.end());
      if (missing) {
        values.insert(values.begin() + 1, kMissing);
      }
      Column column;
      column.assign(values);
      check(column.is_coded() == (n <= Column::kMaxCodes), "few values are coded");
      check(column.is_packed() == (n <= 2 && !missing), "two values are packed");
      check(holds(column, values), "every value is as it was");
      check(column.has_missing() == missing, "missing values are known");
      check(std::ranges::is_sorted(column.table()), "the table ascends");
    }
  }
}

// Runs, few and many values, and values that come late, in columns of all lengths around a tile.
void runs_and_mixtures_come_back() {
  Luck luck(7);
  for (std::size_t life = 0; life < 400; ++life) {
    const std::size_t n = 1 + luck.below(life % 8 == 0 ? 9000 : 400);
    const std::uint32_t n_values = 1 + luck.below(life % 3 == 0 ? 600 : 12);
    const std::uint64_t run = 1 + luck.below(150);
    std::vector<float> values;
    float value = 0.0f;
    for (std::size_t i = 0; i < n; ++i) {
      if (i == 0 || luck.one_in(run)) {
        value = luck.one_in(20) ? kMissing : static_cast<float>(luck.below(n_values)) - 4.0f;
      }
      values.push_back(value);
    }
    Column column = column_of(values);
    check(holds(column, values), "every value is as it was");
    check(column.has_missing() == std::ranges::any_of(values, [](float x) { return std::isnan(x); }),
          "missing values are known");
    // A value is known for as long as a row has it, and no longer.
    for (std::size_t i = 0; i < n; ++i) {
      column.erase(static_cast<Slot>(i));
      const bool later = std::find(values.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                   values.end(), values[i]) != values.end();
      if (column.is_coded() && !std::isnan(values[i]) && (!later || i % 50 == 0)) {
        check(is_gone(column, n, values[i]) == !later, "a value goes with its last row");
      }
    }
  }
}

void extreme_values_keep_their_bits() {
  const std::vector<float> values{3.4e38f, -3.4e38f, 1e-45f, -1e-45f, 0.0f, 1.0f, 1.0000001f};
  Column column;
  column.assign(values);
  check(column.is_coded() && holds(column, values), "extremes come back");
}

void erasing_wipes() {
  for (const std::size_t n : {3u, 400u}) {
    Column column;
    std::vector<float> values = ascending(n);
    values.push_back(values[1]);  // another row has the same
    column.assign(values);
    column.erase(2);
    check(is_gone(column, values.size(), values[2]), "an erased value is nowhere");
    column.erase(1);
    check(!is_gone(column, values.size(), values[1]), "another row still has it");
    column.erase(static_cast<Slot>(n));
    check(is_gone(column, values.size(), values[1]), "and it goes with the last one");
    check(same(column.at(0), values[0]), "others stay");
  }
}

void compaction_keeps_order() {
  Luck luck(1);
  for (const std::size_t n : {20u, 600u}) {
    std::vector<float> values = ascending(n);
    values[4] = kMissing;
    Column column;
    column.assign(values);
    std::vector<Slot> kept;
    std::vector<float> wanted;
    for (Slot slot = 0; slot < n; ++slot) {
      if (luck.one_in(2)) {
        column.erase(slot);
      } else {
        kept.push_back(slot);
        wanted.push_back(values[slot]);
      }
    }
    column = column.kept(kept);
    check(holds(column, wanted), "kept values in their order");
    const auto n_missing = std::ranges::count_if(wanted, [](float x) { return std::isnan(x); });
    check(column.has_missing() == (n_missing > 0), "missing values are counted anew");
  }
  Column column;
  column.assign(ascending(300));
  column = column.kept(std::vector<Slot>{7, 8, 250});
  check(column.is_coded() && column.table().size() == 3, "few are left: codes again");
}

void appending() {
  Column column;
  std::vector<float> values;
  std::size_t n = 0;
  for (const std::size_t more : {0u, 5u, 1u, 250u, 100u, 3u}) {
    std::vector<float> added = ascending(n + more);
    added.erase(added.begin(), added.begin() + static_cast<std::ptrdiff_t>(n));
    if (more == 3) {
      added[1] = kMissing;
    }
    column.append(column_of(added));
    values.insert(values.end(), added.begin(), added.end());
    n += more;
    check(holds(column, values), "old and new values");
    check(column.is_coded() == (n <= Column::kMaxCodes), "coded as long as they are few");
  }
  check(column.has_missing(), "a missing value came late");
}

void truncation_undoes_an_append() {
  for (const std::size_t n : {10u, 300u}) {
    const std::vector<float> values = ascending(n);
    Column column;
    column.assign(values);
    column.append(column_of({1e6f, kMissing, 2e6f}));
    column.truncate(n);
    check(holds(column, values), "what was there before");
    check(is_gone(column, n, 1e6f) && is_gone(column, n, 2e6f), "and nothing else");
  }
}

void canonical_floats() {
  using letheon::canonical;
  check(!std::signbit(canonical(-0.0f)), "one zero");
  const float odd = std::bit_cast<float>(0xFFC12345u);
  check(std::bit_cast<std::uint32_t>(canonical(odd)) ==
            std::bit_cast<std::uint32_t>(canonical(kMissing)),
        "one NaN");
  const std::vector<double> doubles{1.0 + 0x1p-24, 1e39, -0.0, 0x1p-160};
  const letheon::MatrixView view{reinterpret_cast<const std::byte*>(doubles.data()), 2, 2,
                                         8, 16, true};
  check(view.at(0, 0) == 1.0f, "nearest, ties to even");
  check(std::isinf(view.at(1, 0)), "too large is infinite");
  check(view.at(0, 1) == 0.0f && !std::signbit(view.at(0, 1)), "strides are in bytes");
  check(view.at(1, 1) == 0.0f, "too small is zero");
}

}  // namespace

int main() {
  coded_up_to_the_limit();
  runs_and_mixtures_come_back();
  extreme_values_keep_their_bits();
  erasing_wipes();
  compaction_keeps_order();
  appending();
  truncation_undoes_an_append();
  canonical_floats();
  return letheon::testing::result();
}
