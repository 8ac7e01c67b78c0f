// What a look at a node's rows finds, against the definition.
#include "letheon/forest/scan.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "checks.hpp"
#include "naive.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using letheon::testing::check;
using letheon::testing::Luck;
using letheon::testing::naive_list;
using letheon::testing::naive_lists;
using letheon::testing::NaiveList;
using letheon::testing::People;
using letheon::testing::Rows;
using letheon::testing::Shape;
using letheon::testing::Tally;
using letheon::testing::tally_of;
using letheon::testing::weight_of;

letheon::Table table_of(const People& people, std::uint32_t n_classes) {
  letheon::Table table(static_cast<std::uint32_t>(people.n_columns), n_classes == 0, std::nullopt);
  static_cast<void>(table.append(people.batch(), n_classes));
  table.rescale();
  return table;
}

std::vector<letheon::Slot> some_rows(Luck& luck, std::size_t n_slots) {
  std::vector<letheon::Slot> rows;
  const std::uint64_t share = 1 + luck.below(8);
  for (letheon::Slot slot = 0; slot < n_slots; ++slot) {
    if (luck.one_in(share)) {
      rows.push_back(slot);
    }
  }
  if (rows.empty()) {
    rows.push_back(luck.below(n_slots));
  }
  return rows;
}

Tally lanes_at(const std::vector<std::int64_t>& lanes, std::size_t place, std::size_t n_lanes) {
  const auto begin = lanes.begin() + static_cast<std::ptrdiff_t>(place * n_lanes);
  return {begin, begin + static_cast<std::ptrdiff_t>(n_lanes)};
}

void compare_list(const forest::Draft& draft, std::size_t number, const NaiveList& wanted,
                  std::uint32_t keep) {
  const forest::Draft::List& list = draft.lists[number];
  const std::size_t size = std::min<std::size_t>(keep, wanted.values.size());
  check(list.attribute == wanted.attribute, "attributes come in their order");
  check(list.size == size, "as many values as are kept");
  check(list.has_missing == wanted.has_missing, "missing values are known");
  check(list.truncated || wanted.values.size() <= keep, "what is left out is known");
  check(lanes_at(draft.missing, number, draft.n_lanes) == wanted.missing, "lanes of the missing");
  for (std::size_t k = 0; k < std::min<std::size_t>(size, list.size); ++k) {
    const std::size_t entry = list.first + k;
    check(draft.values[entry] == wanted.values[k].value, "values by priority");
    check(draft.copies[entry] == wanted.values[k].copies, "weight of the value");
    check(lanes_at(draft.left, entry, draft.n_lanes) == wanted.values[k].left, "what lies left");
  }
}

void greedy(Luck& luck, const Shape& shape) {
  const People people = random_people(luck, shape);
  const letheon::Table table = table_of(people, shape.n_classes);
  forest::Spec spec = random_spec(luck, shape);
  forest::Scratch scratch;
  forest::Scanner scanner(table, spec, scratch);
  for (int node = 0; node < 6; ++node) {
    const auto rows = some_rows(luck, table.n_slots());
    const std::uint64_t key = luck.next();
    const std::uint32_t keep = luck.one_in(4) ? forest::kUnlimited : 1 + luck.below(80);
    std::vector<std::uint64_t> constant(1, 0);
    scanner.load(rows);
    scanner.greedy(key, keep, &constant);
    const auto wanted = naive_lists(table, rows, key, spec.max_features, spec);
    check(scratch.draft.lists.size() == wanted.size(), "as many attributes as vary");
    for (std::size_t i = 0; i < std::min(wanted.size(), scratch.draft.lists.size()); ++i) {
      compare_list(scratch.draft, i, wanted[i], keep);
    }
    for (std::uint32_t a = 0; a < table.n_columns(); ++a) {
      const bool marked = (constant[0] >> a & 1) != 0;
      check(!marked || !naive_list(table, rows, a, key).varies(), "only constants are marked");
    }
  }
}

// Many rows for each of many values: which values are among the lowest shows only after several
// tries with a raised bound.
void repeated_values() {
  Luck luck(21);
  People people;
  for (std::size_t i = 0; i < 1500; ++i) {
    people.X.push_back(static_cast<float>(luck.below(300)));
    people.labels.push_back(luck.below(2));
  }
  const letheon::Table table = table_of(people, 2);
  check(!table.column(0).is_coded(), "too many values for codes");
  forest::Spec spec;
  spec.n_columns = 1;
  forest::Scratch scratch;
  forest::Scanner scanner(table, spec, scratch);
  const auto rows = letheon::testing::counting(1500);
  scanner.load(rows);
  for (int node = 0; node < 400; ++node) {
    const std::uint64_t key = luck.next();
    const std::uint32_t keep = 1 + luck.below(60);
    spec.categorical.assign(1, static_cast<std::uint8_t>(node % 2));
    scanner.greedy(key, keep, nullptr);
    compare_list(scratch.draft, 0, naive_list(table, rows, 0, key, node % 2 == 1), keep);
  }
}

forest::Extremes naive_extremes(const letheon::Table& table, const NaiveList& list, Rows rows,
                                bool is_category) {
  forest::Extremes wanted{};
  const auto by_value = &NaiveList::Value::value;
  const auto& least = std::ranges::min(list.values, {}, by_value);
  const auto& greatest = std::ranges::max(list.values, {}, by_value);
  wanted = {least.value, greatest.value, least.copies, greatest.copies, 0};
  if (is_category) {
    const auto& chosen = list.values.front();  // of lowest priority
    wanted = {chosen.value, chosen.value, chosen.copies, chosen.copies, 0};
    if (list.values.size() > 1) {
      wanted.greatest = std::numeric_limits<float>::infinity();
      wanted.greatest_weight = 0;
      for (const auto& other : list.values) {
        wanted.greatest_weight += other.value == chosen.value ? 0 : other.copies;
      }
    }
  }
  for (const letheon::Slot slot : rows) {
    const bool missing = std::isnan(table.column(list.attribute).at(slot));
    wanted.missing_weight += missing ? table.weight(slot) : 0;
  }
  return wanted;
}

void random_nodes(Luck& luck, const Shape& shape) {
  const People people = random_people(luck, shape);
  const letheon::Table table = table_of(people, shape.n_classes);
  const forest::Spec spec = random_spec(luck, shape);
  forest::Scratch scratch;
  forest::Scanner scanner(table, spec, scratch);
  for (int node = 0; node < 10; ++node) {
    const auto rows = some_rows(luck, table.n_slots());
    const std::uint64_t key = luck.next();
    scanner.load(rows);
    const auto pick = scanner.random(key, nullptr);
    const auto wanted = naive_lists(table, rows, key, 1);
    check(pick.has_value() == !wanted.empty(), "something varies");
    if (!pick || wanted.empty()) {
      continue;
    }
    const forest::Extremes extremes = naive_extremes(
        table, wanted[0], rows, spec.is_category(wanted[0].attribute));
    check(pick->attribute == wanted[0].attribute, "the first that varies");
    check(pick->extremes.least == extremes.least && pick->extremes.greatest == extremes.greatest,
          "least and greatest");
    check(pick->extremes.least_weight == extremes.least_weight &&
              pick->extremes.greatest_weight == extremes.greatest_weight &&
              pick->extremes.missing_weight == extremes.missing_weight,
          "and their weights");
  }
}

void left_sides(Luck& luck, const Shape& shape) {
  const People people = random_people(luck, shape);
  const letheon::Table table = table_of(people, shape.n_classes);
  const forest::Spec spec = random_spec(luck, shape);
  forest::Scratch scratch;
  forest::Scanner scanner(table, spec, scratch);
  const auto rows = some_rows(luck, table.n_slots());
  scanner.load(rows);
  const bool is_category = luck.one_in(2);
  const float threshold = is_category ? table.column(0).at(rows[0]) : 0.1f;
  const forest::Verdict split{forest::Verdict::Kind::split, 0,          threshold, true,
                              luck.one_in(2),               is_category};
  std::vector<letheon::Slot> left;
  std::vector<std::uint8_t> goes_left;
  for (const letheon::Slot slot : rows) {
    goes_left.push_back(split.sends_left(table.column(0).at(slot)) ? 1 : 0);
    if (goes_left.back() != 0) {
      left.push_back(slot);
    }
  }
  const Tally wanted = tally_of(table, left);
  check(scanner.weight_left(split) == weight_of(table, wanted), "weight of the left side");
  Tally lanes(table.n_lanes(), 0);
  forest::Wide squares = 0;
  scanner.add_left(goes_left.data(), lanes, table.is_regression() ? &squares : nullptr);
  check(lanes == wanted, "lanes of the left side");
  forest::Wide wanted_squares = 0;
  for (const letheon::Slot slot : left) {
    const std::int64_t q = table.is_regression() ? table.q(slot) : 0;
    wanted_squares += static_cast<forest::Wide>(q * q) * table.weight(slot);
  }
  check(squares == wanted_squares, "squares of the left side");
}

void orders() {
  Luck luck(9);
  forest::AttributeOrder order;
  for (const std::uint32_t n : {1u, 2u, 64u, 65u, 300u}) {
    const std::uint64_t key = luck.next();
    std::vector<std::uint64_t> constant((n + 63) / 64, luck.next() & luck.next());
    std::vector<std::uint32_t> given;
    forest::Spec spec;
    spec.n_columns = n;
    order.start(key, spec, &constant);
    while (const auto next = order.next()) {
      given.push_back(*next);
    }
    auto wanted = letheon::testing::naive_order(key, n);
    std::erase_if(wanted, [&](std::uint32_t a) { return (constant[a / 64] >> (a % 64) & 1) != 0; });
    check(given == wanted, "ascending by hash, without the constants");
  }
}

}  // namespace

int main() {
  orders();
  repeated_values();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Luck luck(seed);
    const Shape shape{.n_rows = 20 + luck.below(seed % 10 == 0 ? 2000 : 500),
                      .n_columns = 5,
                      .n_classes = static_cast<std::uint32_t>(seed % 4),
                      .missing = luck.one_in(2),
                      .weighted = luck.one_in(2)};
    greedy(luck, shape);
    random_nodes(luck, shape);
    left_sides(luck, shape);
  }
  return letheon::testing::result();
}
