// The training rows: weights, scales of a regression target, holes, and what is refused.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "checks.hpp"
#include "letheon/common/table.hpp"
#include "people.hpp"

namespace {

using letheon::Slot;
using letheon::Table;
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

void threads_make_the_same_table() {
  Luck luck(3);
  People people{.n_columns = 70};
  for (std::size_t i = 0; i < 500 * people.n_columns; ++i) {
    people.X.push_back(static_cast<float>(luck.below(i % 3 == 0 ? 2 : 400)));
  }
  people.labels.assign(500, 0);
  std::vector<std::size_t> rows(500);
  std::iota(rows.begin(), rows.end(), 0u);
  std::ranges::reverse(rows);
  for (const std::size_t n_threads : {1u, 2u, 5u, 200u}) {
    Table table(70, false, std::nullopt);
    check(table.append(people.batch(), 1, rows, n_threads).size() == 500, "a slot per row");
    for (Slot slot = 0; slot < 500; ++slot) {
      for (std::size_t j = 0; j < 70; ++j) {
        check(table.column(j).at(slot) == people.X[rows[slot] * 70 + j], "the value of its row");
      }
    }
    People infinite = people;
    infinite.X[4321] = std::numeric_limits<float>::infinity();
    check_refused([&] { static_cast<void>(table.append(infinite.batch(), 1, rows, n_threads)); },
                  "infinity");
    check(table.n_slots() == 500 && table.column(69).at(499) == people.X[69], "nothing changed");
  }
}

// Columns of two values become bits from rows at once; what comes late ends that.
void every_layout_makes_the_same_table() {
  Luck luck(8);
  for (std::size_t life = 0; life < 60; ++life) {
    const std::size_t n = 1 + luck.below(400);
    const std::size_t n_columns = 1 + luck.below(90);
    People people{.n_columns = n_columns};
    std::vector<float> first;
    std::vector<float> second;
    for (std::size_t j = 0; j < n_columns; ++j) {
      first.push_back(static_cast<float>(luck.below(3)) - 1.0f);
      second.push_back(static_cast<float>(luck.below(3)) - 1.0f);
    }
    for (std::size_t i = 0; i < n * n_columns; ++i) {
      const std::size_t j = i % n_columns;
      const bool late = j % 4 == 1 && luck.one_in(150);
      const float odd = luck.one_in(2) ? kMissing : 7.5f;
      const float zero = luck.one_in(2) ? -0.0f : 0.0f;
      const float x = luck.one_in(5) ? second[j] : first[j];
      people.X.push_back(late ? odd : (x == 0.0f ? zero : x));
    }
    people.labels.assign(n, 0);
    const std::vector<double> doubles(people.X.begin(), people.X.end());
    std::vector<float> by_column;
    for (std::size_t i = 0; i < n * n_columns; ++i) {
      by_column.push_back(people.X[i % n * n_columns + i / n]);
    }
    letheon::Batch batch = people.batch();
    const auto width = static_cast<std::ptrdiff_t>(n_columns);
    const auto height = static_cast<std::ptrdiff_t>(n);
    const std::vector<letheon::MatrixView> views{
        batch.X,
        {reinterpret_cast<const std::byte*>(doubles.data()), n, n_columns, width * 8, 8, true},
        {reinterpret_cast<const std::byte*>(by_column.data()), n, n_columns, 4, height * 4, false}};
    for (const auto& view : views) {
      Table table(static_cast<std::uint32_t>(n_columns), false, std::nullopt);
      batch.X = view;
      static_cast<void>(table.append(batch, 1));
      for (std::size_t j = 0; j < n_columns; ++j) {
        const auto& column = table.column(j);
        bool equal = true;
        bool packed = true;
        for (Slot slot = 0; slot < n; ++slot) {
          const float x = letheon::canonical(people.X[slot * n_columns + j]);
          equal = equal && std::bit_cast<std::uint32_t>(column.at(slot)) ==
                               std::bit_cast<std::uint32_t>(x);
          packed = packed && (x == first[j] || x == second[j]);
        }
        check(equal, "the value of its row");
        check(!packed || column.is_packed(), "two values are packed");
        check(std::ranges::is_sorted(column.table()), "the table ascends");
      }
      // Erased rows leave no bit.
      std::vector<Slot> all(n);
      std::iota(all.begin(), all.end(), 0u);
      table.erase(all);
      for (std::size_t j = 0; j < n_columns; ++j) {
        const auto& column = table.column(j);
        const std::size_t n_words = (n + 63) / 64;
        check(!column.is_packed() || std::all_of(column.words(), column.words() + n_words,
                                                 [](auto word) { return word == 0; }),
              "wiped");
        check(!column.is_packed() || std::ranges::all_of(column.table(), [](float x) {
                return std::isnan(x);
              }),
              "no value is known");
      }
    }
  }
}

void erased_rows_have_no_owner() {
  Table table(1, false, std::nullopt);
  const People people{.X = {1, 2}, .labels = {1, 1}, .owners = {11, 12}};
  static_cast<void>(table.append(people.batch(), 2));
  table.erase(std::vector<Slot>{0});
  check(table.owner(0) == 0 && table.label(0) == 0 && table.owner(1) == 12, "one row is wiped");
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
  check(table.q(3) == 0, "nothing is left of the greatest");
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

// The same table by columns, without its zeros.
void sparse_rows_are_dense_rows() {
  Luck luck(4);
  const std::size_t n = 40;
  People people{.n_columns = 3};
  std::vector<double> values;
  std::vector<std::int64_t> places;
  std::vector<std::int64_t> begins{0};
  people.X.assign(3 * n, 0.0f);
  for (std::size_t j = 0; j < 3; ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      if (luck.one_in(3)) {
        values.push_back(luck.one_in(9) ? kMissing : -0.5 * luck.below(9));
        places.push_back(static_cast<std::int64_t>(i));
        people.X[3 * i + j] = static_cast<float>(values.back());
      }
    }
    begins.push_back(static_cast<std::int64_t>(places.size()));
  }
  for (std::size_t i = 0; i < n; ++i) {
    people.labels.push_back(luck.below(2));
    people.weights.push_back(luck.below(3));
  }
  letheon::Batch batch = people.batch();
  Table dense(3, false, std::nullopt);
  Table sparse(3, false, std::nullopt);
  const auto slots = dense.append(batch, 2);
  batch.X = {reinterpret_cast<const std::byte*>(values.data()), n, 3, sizeof(double), 0, true,
             begins, places};
  check(sparse.append(batch, 2) == slots && slots.size() < n, "the same slots");
  for (std::size_t j = 0; j < 3; ++j) {
    for (const Slot slot : slots) {
      const float a = dense.column(j).at(slot);
      const float b = sparse.column(j).at(slot);
      check(std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b), "the same values");
    }
  }
  const auto refused = [&](const char* what) {
    check_refused([&] { static_cast<void>(sparse.append(batch, 2)); }, what);
  };
  places[3] = static_cast<std::int64_t>(n);
  refused("a place beyond the rows");
  places[3] = -1;
  refused("a place before the rows");
  places[3] = 0;
  begins[1] = begins[3] + 1;
  refused("columns that do not ascend");
  begins[1] = begins[2];
  begins[3] -= 1;
  refused("values of no column");
  begins[3] += 1;
  std::ranges::fill(values, 1e300);
  refused("too large for float32");
  check(sparse.n_rows() == slots.size(), "nothing was added");
}

void classes_are_weighed_again() {
  Table table(1, false, std::nullopt);
  const People people{.X = {1, 2, 3, 4}, .labels = {0, 1, 1, 0}, .weights = {3, 10, 5, 6}};
  static_cast<void>(table.append(people.batch(), 2));
  table.erase(std::vector<Slot>{3});
  const std::vector<std::uint32_t> before{3, 5};
  const std::vector<std::uint32_t> after{7, 2};
  table.reweigh(before, after);
  check(table.weight(0) == 7 && table.weight(1) == 4 && table.weight(2) == 2, "new weights");
  check(table.weight(3) == 0, "an erased row stays so");
  check(table.class_weights() == std::vector<std::int64_t>{7, 6}, "and sums of the classes");
  const std::vector<std::uint32_t> heavy{1u << 31, 2};
  const std::vector<std::uint32_t> zero{0, 2};
  const std::vector<std::uint32_t> one{7};
  check_refused([&] { table.reweigh(after, heavy); }, "too heavy");
  check_refused([&] { table.reweigh(after, zero); }, "no weight");
  check_refused([&] { table.reweigh(before, after); }, "a remainder");
  check_refused([&] { table.reweigh(one, one); }, "too few factors");
  table.reweigh(after, before);
  check(table.weight(1) == 10 && table.class_weights()[0] == 3, "and back");
}

}  // namespace

int main() {
  weights();
  sparse_rows_are_dense_rows();
  classes_are_weighed_again();
  threads_make_the_same_table();
  every_layout_makes_the_same_table();
  erased_rows_have_no_owner();
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
