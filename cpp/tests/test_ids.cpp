// Who owns which slot: found again, never confused, and forgotten without a trace.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "checks.hpp"
#include "letheon/common/id_table.hpp"
#include "people.hpp"

namespace {

using letheon::Found;
using letheon::IdBatch;
using letheon::IdTable;
using letheon::Slot;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::Luck;
using letheon::testing::People;

std::vector<std::size_t> all_of(const People& people) {
  std::vector<std::size_t> rows(people.ids().size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

People ints(const std::vector<std::int64_t>& values) {
  People people;
  people.ints = values;
  return people;
}

People texts(const std::vector<std::string>& names) {
  People people;
  people.name(names);
  return people;
}

void erase(IdTable& table, const std::vector<Slot>& slots) {
  std::vector<std::uint8_t> doomed(table.size(), 0);
  for (const Slot slot : slots) {
    doomed[slot] = 1;
  }
  table.erase(slots, doomed);
}

void ints_are_found() {
  IdTable table({1, 2});
  const People people = ints({5, -7, 5, 0, INT64_MIN, INT64_MAX, 5});
  table.append(people.ids(), all_of(people));
  const Found found = table.find(ints({5, 6, INT64_MIN, 5, 0}).ids());
  check(found.slots == std::vector<Slot>{0, 2, 3, 4, 6}, "slots ascend, each once");
  check(found.missing == std::vector<std::size_t>{1}, "who is not there is named by place");
  check(table.compare(1, 0) < 0 && table.compare(0, 2) == 0 && table.compare(5, 4) > 0,
        "ints are ordered by value");
}

void texts_are_found() {
  IdTable table({3, 4});
  const std::vector<std::string> names{"ann", "", "née", std::string("a\0b", 3), "an", "ann"};
  const People people = texts(names);
  table.append(people.ids(), all_of(people));
  const Found found = table.find(texts({"ann", "a", std::string("a\0b", 3), ""}).ids());
  check(found.slots == std::vector<Slot>{0, 1, 3, 5}, "texts are compared in full");
  check(found.missing == std::vector<std::size_t>{1}, "a prefix is another id");
  check(table.text_at(2) == "née", "a text comes back");
  check(table.compare(2, 0) > 0 && table.compare(4, 0) < 0, "texts are ordered by bytes");
  check(table.find(ints({0}).ids()).missing.size() == 1, "ints are not texts");
}

void rows_are_chosen() {
  IdTable table;
  const People people = texts({"a", "b", "c", "d"});
  table.append(people.ids(), std::vector<std::size_t>{3, 1});
  check(table.size() == 2 && table.text_at(0) == "d" && table.text_at(1) == "b", "only these rows");
}

// Against a map, with few buckets and many owners of many rows.
template <typename Make>
void any_history(Make make, std::uint64_t seed) {
  Luck luck(seed);
  IdTable table({luck.next(), luck.next()});
  std::map<std::int64_t, std::vector<Slot>> wanted;
  std::vector<std::int64_t> owner_of;
  for (int round = 0; round < 25; ++round) {
    std::vector<std::int64_t> coming;
    for (std::uint32_t i = luck.below(30); i > 0; --i) {
      coming.push_back(luck.below(20));
    }
    const People people = make(coming);
    table.append(people.ids(), all_of(people));
    for (const std::int64_t owner : coming) {
      owner_of.push_back(owner);
    }
    std::vector<Slot> kept;
    std::vector<Slot> gone;
    for (Slot slot = 0; slot < owner_of.size(); ++slot) {
      (luck.one_in(4) ? gone : kept).push_back(slot);
    }
    erase(table, gone);
    for (std::int64_t owner = 0; owner < 21; ++owner) {
      std::vector<Slot> slots;
      std::ranges::copy_if(kept, std::back_inserter(slots),
                           [&](Slot slot) { return owner_of[slot] == owner; });
      check(table.find(make({owner}).ids()).slots == slots, "exactly the rows that are left");
    }
    table = table.kept(kept);
    std::vector<std::int64_t> left;
    for (const Slot slot : kept) {
      left.push_back(owner_of[slot]);
    }
    owner_of = left;
    check(table.size() == left.size(), "as many as are kept");
  }
}

People named(const std::vector<std::int64_t>& owners) {
  std::vector<std::string> names;
  for (const std::int64_t owner : owners) {
    names.push_back(std::string(static_cast<std::size_t>(owner) * 3, 'x') + std::to_string(owner));
  }
  return texts(names);
}

void an_erased_id_leaves_nothing() {
  IdTable table;
  const People people = texts({"short", std::string(100, 'q'), "other"});
  table.append(people.ids(), all_of(people));
  erase(table, {0, 1});
  check(table.text_at(0).empty() && table.text_at(1).empty(), "erased texts are empty");
  check(table.find(people.ids()).slots == std::vector<Slot>{2}, "only the other is found");
  IdTable numbers;
  const People two = ints({17, 18});
  numbers.append(two.ids(), all_of(two));
  erase(numbers, {0});
  check(numbers.int_at(0) == 0, "erased ints are zero");
  check(numbers.find(ints({0, 17}).ids()).slots.empty(), "and zero is nobody");
}

void truncation_undoes_an_append() {
  for (const std::size_t more : {1u, 3u, 100u}) {
    IdTable table({9, 9});
    const People first = ints({1, 2, 3, 1});
    table.append(first.ids(), all_of(first));
    std::vector<std::int64_t> coming(more, 1);
    coming.back() = 77;
    const People second = ints(coming);
    table.append(second.ids(), all_of(second));
    table.truncate(4);
    check(table.size() == 4, "as many as before");
    check(table.find(ints({1}).ids()).slots == std::vector<Slot>{0, 3}, "the old ones are found");
    check(table.find(ints({77}).ids()).missing.size() == 1, "the new ones are not");
  }
}

void bad_batches_are_refused() {
  IdTable table;
  const People people = ints({1, 2});
  table.append(people.ids(), all_of(people));
  check_refused([&] { table.append(texts({"a"}).ids(), std::vector<std::size_t>{0}); },
                "texts among ints");
  check(table.size() == 2 && !table.is_text(), "nothing has changed");
  const auto offsets_refused = [](std::vector<std::int64_t> offsets) {
    People bad = texts({"ab", "c"});
    bad.offsets = std::move(offsets);
    check_refused([&] { bad.ids().validate(); }, "offsets that do not fit");
  };
  offsets_refused({});
  offsets_refused({-1, 2, 3});
  offsets_refused({0, 2, 4});
  offsets_refused({0, 3, 2});
  offsets_refused({0, INT64_MAX, INT64_MAX});
}

}  // namespace

int main() {
  ints_are_found();
  texts_are_found();
  rows_are_chosen();
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    any_history(ints, seed);
    any_history(named, seed);
  }
  an_erased_id_leaves_nothing();
  truncation_undoes_an_append();
  bad_batches_are_refused();
  return letheon::testing::result();
}
