// The training rows: weights, scales of a regression target, holes, and what is refused.
#include <cmath>
#include <numeric>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/table.hpp"
#include "people.hpp"

namespace {

using letheon::forest::Slot;
using letheon::forest::Table;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::kMissing;
using letheon::testing::Luck;
using letheon::testing::People;

People targets(std::vector<double> y) {
  People people;
  people.X.assign(y.size(), 1.0f);
  people.y = std::move(y);
  return people;
}

Table regression(const People& people, std::optional<int> exponent = std::nullopt) {
  Table table(1, true, exponent);
  static_cast<void>(table.append(people.batch(), 0));
  table.rescale();
  return table;
}

void weights() {
  Table table(1, false, std::nullopt);
  People people{.X = {1, 2, 3, 4}, .labels = {0, 1, 1, 0}};
  check(table.append(people.batch(), 2) == std::vector<Slot>{0, 1, 2, 3}, "slots in order");
  check(!table.is_weighted(), "all ones need no memory");
  people.weights = {0, 5, 0, 2};
  check(table.append(people.batch(), 3) == std::vector<Slot>{4, 5}, "weight 0 is not there");
  check(table.n_rows() == 6 && table.n_classes() == 3, "six rows of three classes");
  check(table.weight(0) == 1 && table.weight(4) == 5 && table.weight(5) == 2, "weights by slot");
  check(table.class_weights() == std::vector<std::int64_t>{4, 7, 0}, "weights of the classes");
  check(table.column(0).at(4) == 2.0f && table.label(5) == 0, "the right rows");
  table.erase(std::vector<Slot>{0, 4});
  check(table.class_weights() == std::vector<std::int64_t>{3, 2, 0}, "without the erased rows");
  check(!table.is_alive(4) && table.weight(4) == 0 && table.n_rows() == 4, "wiped");
}

void the_total_weight_is_limited() {
  Table table(1, false, std::nullopt);
  People people{.X = {1, 2}, .labels = {0, 1}, .weights = {1u << 30, 1u << 30}};
  check_refused([&] { static_cast<void>(table.append(people.batch(), 2)); }, "2^31 is too much");
  people.weights[1] -= 1;
  check(table.append(people.batch(), 2).size() == 2, "one less is not");
  people.weights = {1, 0};
  check_refused([&] { static_cast<void>(table.append(people.batch(), 2)); }, "no room for one");
  table.erase(std::vector<Slot>{1});
  table.erase(std::vector<Slot>{0});
  check(table.n_rows() == 0, "nobody is left");
}

void scales_follow_the_greatest() {
  Table table = regression(targets({0.75, -3.0, 0.0, 100.0}));
  check(table.exponent() == 7, "2^6 <= 100 < 2^7");
  check(table.q(0) == std::int64_t{3} << 22, "0.75 * 2^24");
  check(table.q(1) == -(std::int64_t{3} << 24), "-3 * 2^24");
  check(!table.would_rescale(std::vector<Slot>{0, 1}), "the greatest stays");
  check(table.would_rescale(std::vector<Slot>{3}), "the greatest leaves");
  table.erase(std::vector<Slot>{3});
  check(table.rescale() && table.exponent() == 2, "2^1 <= 3 < 2^2");
  check(table.q(0) == std::int64_t{3} << 27, "0.75 * 2^29");
  check(!table.rescale(), "nothing more to do");
  table.erase(std::vector<Slot>{0, 1});
  check(table.rescale() && table.exponent() == 0 && table.q(2) == 0, "all zero: scale 0");
}

void rounding_is_half_to_even() {
  const Table table = regression(targets({0x1p31, 0.5, 1.5, 2.5, -0.5, -1.5}));
  check(table.exponent() == 32, "2^31 lies below 2^32");
  check(table.q(0) == std::int64_t{1} << 30, "in halves");
  const Table fine = regression(targets({0x1p30, 0.5, 1.5, 2.5, -0.5, -1.5}));
  const std::vector<std::int64_t> wanted{0, 2, 2, 0, -2};
  for (Slot slot = 1; slot < 6; ++slot) {
    check(fine.q(slot) == wanted[slot - 1], "half to even");
  }
}

void extreme_targets() {
  const Table huge = regression(targets({0x1.8p1007, -0x1.8p1007, 1e-300}));
  check(huge.exponent() == 1008 && huge.q(0) == -huge.q(1) && huge.q(2) == 0, "huge");
  const Table tiny = regression(targets({4.9e-324, 0.0}));
  check(tiny.exponent() == -1073 && tiny.q(0) == std::int64_t{1} << 30, "the least of all");
  const Table zero = regression(targets({-0.0, 0.0}));
  check(zero.exponent() == 0 && !std::signbit(zero.y(0)), "one zero");
}

void fixed_scale() {
  Table table = regression(targets({1.0, 3.0}), 2);
  check(table.exponent() == 2, "as was said");
  table.erase(std::vector<Slot>{1});
  check(!table.rescale(), "whoever leaves");
  const People large = targets({4.0});
  check_refused([&] { static_cast<void>(table.append(large.batch(), 0)); }, "beyond y_max");
}

bool same_rows(const Table& a, const Table& b) {
  bool same = a.n_slots() == b.n_slots() && a.n_rows() == b.n_rows() &&
              a.n_classes() == b.n_classes() && a.exponent() == b.exponent();
  for (Slot slot = 0; same && slot < a.n_slots(); ++slot) {
    same = a.weight(slot) == b.weight(slot) && a.is_alive(slot) == b.is_alive(slot);
    same = same && (a.is_regression() ? a.q(slot) == b.q(slot) : a.label(slot) == b.label(slot));
    for (std::uint32_t j = 0; j < a.n_columns(); ++j) {
      const float x = a.column(j).at(slot);
      const float y = b.column(j).at(slot);
      same = same && (x == y || (std::isnan(x) && std::isnan(y)));
    }
  }
  return same;
}

void taking_back(std::uint32_t n_classes) {
  Luck luck(n_classes);
  const People first = random_people(
      luck, {.n_rows = 300, .n_classes = n_classes, .missing = true, .weighted = true});
  People second = random_people(luck, {.n_rows = 40, .n_classes = n_classes, .missing = true});
  const auto filled = [&] {
    Table table(4, n_classes == 0, std::nullopt);
    static_cast<void>(table.append(first.batch(), n_classes));
    table.rescale();
    return table;
  };
  Table table = filled();
  static_cast<void>(table.append(second.batch(), n_classes + (n_classes > 0 ? 2 : 0)));
  table.take_back(300, n_classes);
  const Table wanted = filled();
  check(same_rows(table, wanted), "as if nothing had come");
  check(table.class_weights() == wanted.class_weights(), "the weights of the classes too");
  check(!table.rescale(), "and the scale");
  second.weights.assign(40, 3);
  check(table.append(second.batch(), n_classes).size() == 40, "and can come again");
}

void compaction(std::uint32_t n_classes) {
  Luck luck(100 + n_classes);
  const People people = random_people(
      luck, {.n_rows = 400, .n_classes = n_classes, .missing = true, .weighted = n_classes > 2});
  Table table(4, n_classes == 0, std::nullopt);
  static_cast<void>(table.append(people.batch(), n_classes));
  std::vector<Slot> gone;
  std::vector<Slot> slots;
  std::vector<std::size_t> kept;
  for (Slot slot = 0; slot < 400; ++slot) {
    if (luck.one_in(3)) {
      gone.push_back(slot);
    } else {
      slots.push_back(slot);
      kept.push_back(slot);
    }
  }
  table.erase(gone);
  table.rescale();
  table = table.kept(slots);
  Table wanted(4, n_classes == 0, std::nullopt);
  static_cast<void>(wanted.append(people.take(kept).batch(), n_classes));
  wanted.rescale();
  check(same_rows(table, wanted), "the rows that stay, without holes");
  check(table.class_weights() == wanted.class_weights(), "and their classes");
}

void copies_are_row_major() {
  Luck luck(5);
  const People people = random_people(luck, {.n_rows = 30, .n_columns = 3, .weighted = true});
  Table table(3, false, std::nullopt);
  static_cast<void>(table.append(people.batch(), 2));
  const auto block = table.copy(std::vector<Slot>{4, 29});
  check(block.row(1)[2] == people.X[29 * 3 + 2] && block.row(0)[0] == people.X[12], "values");
  check(block.labels[1] == people.labels[29] && block.weights[0] == people.weights[4], "targets");
}

void bad_rows_change_nothing() {
  Table table(2, false, std::nullopt);
  const People good{.n_columns = 2, .X = {1, 2, 3, kMissing}, .labels = {0, 1}};
  static_cast<void>(table.append(good.batch(), 2));
  const auto refused = [&](const People& bad, std::uint32_t n_classes, const char* what) {
    check_refused([&] { static_cast<void>(table.append(bad.batch(), n_classes)); }, what);
    check(table.n_slots() == 2 && table.n_classes() == 2, "nothing has changed");
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  refused({.n_columns = 2, .X = {1, kInfinity}, .labels = {0}}, 2, "infinity");
  refused({.n_columns = 1, .X = {1, 2}, .labels = {0, 1}}, 2, "too few columns");
  refused({.n_columns = 2, .X = {1, 2}, .labels = {2}}, 2, "no such class");
  refused({.n_columns = 2, .X = {1, 2}, .labels = {0, 1}}, 2, "too many labels");
  refused({.n_columns = 2, .X = {1, 2}, .labels = {0}, .weights = {1, 1}}, 2, "too many weights");
  refused({.n_columns = 2, .X = {1, 2}, .labels = {0}}, Table::kMaxClasses + 1, "many classes");
  const People absent{.n_columns = 2, .X = {kInfinity, 2}, .labels = {0}, .weights = {0}};
  check(table.append(absent.batch(), 2).empty(), "a row of weight 0 may be anything");
  Table numbers(1, true, std::nullopt);
  for (const double y : {HUGE_VAL, -HUGE_VAL, std::nan(""), 0x1p1008, -1.7e308}) {
    const People bad = targets({y});
    check_refused([&] { static_cast<void>(numbers.append(bad.batch(), 0)); },
                  "no number, or too large for sums");
  }
}

}  // namespace

int main() {
  weights();
  the_total_weight_is_limited();
  scales_follow_the_greatest();
  rounding_is_half_to_even();
  extreme_targets();
  fixed_scale();
  for (const std::uint32_t n_classes : {0u, 2u, 3u}) {
    taking_back(n_classes);
    compaction(n_classes);
  }
  copies_are_row_major();
  bad_rows_change_nothing();
  return letheon::testing::result();
}
