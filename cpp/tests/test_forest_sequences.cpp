// Forgetting and learning in any order give the forest that a fresh fit on the same rows gives.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/forest.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using forest::Forest;
using forest::Report;
using letheon::Slot;
using letheon::testing::check;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;
using letheon::testing::Shape;

std::unique_ptr<Forest> fitted(const forest::Spec& spec, const People& people,
                               std::uint32_t n_classes) {
  auto made = std::make_unique<Forest>(spec, letheon::Key{1, 2});
  made->fit(people.batch(), n_classes, people.ids(), 1);
  return made;
}

bool same_rows(const letheon::RowsView& a, const letheon::RowsView& b) {
  const auto bits = [](const std::vector<float>& X) {
    std::vector<std::uint32_t> all;
    for (const float x : X) {
      all.push_back(std::bit_cast<std::uint32_t>(x));
    }
    return all;
  };
  return bits(a.X) == bits(b.X) && a.labels == b.labels && a.y == b.y && a.weights == b.weights &&
         a.ints == b.ints && a.blob == b.blob && a.offsets == b.offsets;
}

bool same_report(const Report& a, const Report& b) {
  return a.rebuilt_rows == b.rebuilt_rows && a.rebuilt_nodes == b.rebuilt_nodes &&
         a.touched_trees == b.touched_trees && a.rescaled == b.rescaled;
}

// A forest with a history, and the rows that it must hold.
class History {
 public:
  History(std::uint64_t seed, std::uint32_t cache_rows) : luck_(seed) {
    shape_ = {.n_rows = 10 + luck_.below(90),
              .n_columns = 1 + luck_.below(6),
              .n_classes = static_cast<std::uint32_t>(seed % 4),
              .missing = luck_.one_in(3),
              .weighted = luck_.one_in(3),
              .text = luck_.one_in(3)};
    pool_ = random_people(luck_, shape_);
    for (double& y : pool_.y) {
      y *= luck_.one_in(15) ? 1000.0 : 1.0;  // this row sets the scale
    }
    spec_ = random_spec(luck_, shape_);
    spec_.cache_rows = cache_rows;
    spec_.slack = luck_.below(7);
    for (std::size_t i = 0; i < pool_.n_rows(); ++i) {
      (luck_.one_in(3) ? outside_ : inside_).push_back(i);
    }
    if (inside_.empty()) {
      inside_.swap(outside_);
    }
    forest_ = fitted(spec_, pool_.take(inside_), shape_.n_classes);
  }

  void step() {
    switch (luck_.below(5)) {
      case 0:
        learn();
        break;
      case 1:
        reload();
        break;
      default:
        forget();
    }
    if (luck_.one_in(4)) {
      forest_->settle(1);
      check(forest_->n_unbuilt() == 0, "settled");
    }
    if (luck_.one_in(2)) {
      compare();
    }
  }

  void compare() {
    // The order of the rows does not matter either.
    std::vector<std::size_t> shuffled = inside_;
    for (std::size_t i = shuffled.size(); i > 1; --i) {
      std::swap(shuffled[i - 1], shuffled[luck_.below(i)]);
    }
    const auto fresh = fitted(spec_, pool_.take(shuffled), shape_.n_classes);
    const auto order = counting(shape_.n_classes);
    const auto matrix = pool_.matrix();
    check(forest_->predict(matrix, 1).values == fresh->predict(matrix, 2).values, "predictions");
    check(forest_->trees_bytes(order, 1) == fresh->trees_bytes(order, 1), "trees");
    check(same_rows(forest_->rows(order), fresh->rows(order)), "rows");
    check(forest_->apply(matrix, 1) == fresh->apply(matrix, 1), "leaves");
    check(forest_->importances(1) == fresh->importances(1), "importances");
    check(forest_->class_counts() == fresh->class_counts(), "classes");
    check(forest_->n_nodes() == fresh->n_nodes(), "nodes");
    check(forest_->n_rows() == inside_.size(), "number of rows");
  }

 private:
  [[nodiscard]] bool same_owner(std::size_t a, std::size_t b) const {
    return pool_.is_text ? pool_.text(a) == pool_.text(b) : pool_.ints[a] == pool_.ints[b];
  }

  void forget() {
    std::vector<std::size_t> wanted;
    const std::uint64_t share = luck_.one_in(4) ? 3 : inside_.size();
    for (const std::size_t i : inside_) {
      if (luck_.one_in(share)) {
        wanted.push_back(i);
      }
    }
    const auto is_wanted = [&](std::size_t i) {
      return std::ranges::any_of(wanted, [&](std::size_t j) { return same_owner(i, j); });
    };
    std::vector<std::size_t> left;
    std::ranges::copy_if(inside_, std::back_inserter(left),
                         [&](std::size_t i) { return !is_wanted(i); });
    if (wanted.empty() || left.empty()) {
      return;
    }
    const letheon::Found found = forest_->find(pool_.take(wanted).ids());
    check(found.missing.empty() && found.slots.size() == inside_.size() - left.size(),
          "everybody is found");
    const std::size_t n_unbuilt = forest_->n_unbuilt();
    const std::size_t n_bytes = forest_->n_bytes();
    const Report cost = forest_->forget_cost(found.slots, 2);
    check(same_report(cost, forest_->forget_cost(found.slots, 1)), "the cost can be asked twice");
    check(forest_->n_unbuilt() == n_unbuilt && forest_->n_bytes() == n_bytes &&
              forest_->n_rows() == inside_.size(),
          "asking changes nothing");
    const Report report = forest_->forget(found.slots, luck_.one_in(3), 1 + luck_.below(2));
    check(same_report(cost, report), "the cost is what it costs");
    for (const std::size_t i : inside_) {
      if (is_wanted(i)) {
        outside_.push_back(i);
      }
    }
    inside_ = std::move(left);
    check(forest_->find(pool_.take(wanted).ids()).slots.empty(), "nobody of them is found");
  }

  void learn() {
    std::vector<std::size_t> coming;
    std::vector<std::size_t> rest;
    for (const std::size_t i : outside_) {
      (luck_.one_in(3) ? coming : rest).push_back(i);
    }
    if (coming.empty()) {
      return;
    }
    const People people = pool_.take(coming);
    forest_->learn(people.batch(), shape_.n_classes, people.ids(), luck_.one_in(3),
                   1 + luck_.below(2));
    inside_.insert(inside_.end(), coming.begin(), coming.end());
    outside_ = std::move(rest);
  }

  // As a file does it.
  void reload() {
    const auto order = counting(shape_.n_classes);
    const letheon::RowsView rows = forest_->rows(order);
    const auto bytes = forest_->trees_bytes(order, 1);
    People people{.n_columns = shape_.n_columns, .X = rows.X, .labels = rows.labels, .y = rows.y,
                  .weights = rows.weights, .is_text = rows.is_text, .ints = rows.ints,
                  .blob = rows.blob, .offsets = rows.offsets};
    for (std::size_t i = 0; i < people.n_rows(); ++i) {
      const std::int64_t id =
          people.is_text ? std::stoll(people.text(i).substr(7)) : people.ints[i];
      people.owners.push_back(letheon::mix64(7, static_cast<std::uint64_t>(id)));
    }
    auto twin = std::make_unique<Forest>(spec_, letheon::Key{3, 4});
    const std::vector<letheon::Bytes> blocks{bytes};
    twin->restore(people.batch(), shape_.n_classes, people.ids(), blocks, 1);
    check(twin->trees_bytes(order, 1) == bytes, "bytes come back");
    forest_ = std::move(twin);
  }

  Luck luck_;
  Shape shape_;
  People pool_;
  forest::Spec spec_;
  std::vector<std::size_t> inside_;
  std::vector<std::size_t> outside_;
  std::unique_ptr<Forest> forest_;
};

void any_sequence(std::uint64_t seed, std::uint32_t cache_rows) {
  History history(seed, cache_rows);
  const int before = letheon::testing::failures;
  for (int step = 0; step < 12; ++step) {
    history.step();
  }
  history.compare();
  check(letheon::testing::failures == before, "sequence " + std::to_string(seed) + ", cache_rows " +
                                                  std::to_string(cache_rows));
}

// Classes that appear late, disappear and appear again.
void classes_come_and_go() {
  Luck luck(11);
  People people = random_people(luck, {.n_rows = 80, .n_classes = 4});
  forest::Spec spec = random_spec(luck, {.n_classes = 4});
  spec.sample_keys.clear();
  std::vector<std::size_t> few;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    people.ints[i] = static_cast<std::int64_t>(i);
    (people.labels[i] < 2 ? few : others).push_back(i);
  }
  const auto model = fitted(spec, people.take(few), 2);
  const People late = people.take(others);
  for (int round = 0; round < 2; ++round) {
    model->learn(late.batch(), 4, late.ids(), round == 1, 1);
    const auto all = fitted(spec, people, 4);
    check(model->trees_bytes(counting(4), 1) == all->trees_bytes(counting(4), 1), "all classes");
    model->forget(model->find(late.ids()).slots, false, 1);
    const auto first = fitted(spec, people.take(few), 2);
    check(model->trees_bytes(counting(2), 1) == first->trees_bytes(counting(2), 1),
          "a class without rows leaves no trace");
    check(model->class_counts()[2] == 0 && model->class_counts()[3] == 0, "nobody is left of it");
  }
}

// The default size of a cache needs larger forests to be met at all.
void large_nodes(std::uint32_t n_classes) {
  Luck luck(30 + n_classes);
  const Shape shape{.n_rows = 1500, .n_columns = 5, .n_classes = n_classes};
  People people = random_people(luck, shape);
  forest::Spec spec = random_spec(luck, shape);
  spec.n_thresholds = 4;
  spec.max_depth = 6;
  spec.random_depth = 1;
  spec.min_samples_leaf = 1;
  std::iota(people.ints.begin(), people.ints.end(), 0);
  const auto model = fitted(spec, people, n_classes);
  std::set<std::int64_t> gone;
  for (int request = 0; request < 150; ++request) {
    std::int64_t id = luck.below(1500);
    while (!gone.insert(id).second) {
      id = luck.below(1500);
    }
    const People person{.ints = {id}};
    model->forget(model->find(person.ids()).slots, request % 2 == 0, 1);
  }
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < 1500; ++i) {
    if (!gone.contains(static_cast<std::int64_t>(i))) {
      left.push_back(i);
    }
  }
  const auto fresh = fitted(spec, people.take(left), n_classes);
  const auto order = counting(n_classes);
  check(model->trees_bytes(order, 1) == fresh->trees_bytes(order, 1), "150 single requests");
}

void bad_requests_change_nothing() {
  Luck luck(12);
  const Shape shape{.n_rows = 30};
  const People people = random_people(luck, shape);
  const auto model = fitted(random_spec(luck, shape), people, 2);
  const auto order = counting(2);
  const auto bytes = model->trees_bytes(order, 1);
  const auto refused = [&](const std::vector<Slot>& slots, const char* what) {
    letheon::testing::check_refused([&] { model->forget(slots, false, 1); }, what);
    letheon::testing::check_refused(
        [&] { static_cast<void>(model->forget_cost(slots, 1)); }, what);
    check(model->n_rows() == 30 && model->trees_bytes(order, 1) == bytes, "nothing has changed");
  };
  refused({30}, "a slot that is not there");
  refused({2, 2}, "a slot twice");
  refused({3, 2}, "slots in disorder");
  refused(counting(30), "everybody");
  model->forget(std::vector<Slot>{5}, false, 1);
  letheon::testing::check_refused([&] { model->forget(std::vector<Slot>{5}, false, 1); },
                                  "somebody who is gone");
  People wrong = people;
  wrong.ints.pop_back();
  letheon::testing::check_refused(
      [&] { model->learn(wrong.batch(), 2, wrong.ids(), false, 1); }, "an id is missing");
  check(model->n_rows() == 29, "nobody came");
}

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    any_sequence(seed, 2);
    any_sequence(seed + 1000, seed % 2 == 0 ? 10 : forest::Spec{}.cache_rows);
  }
  classes_come_and_go();
  for (const std::uint32_t n_classes : {0u, 2u, 3u}) {
    large_nodes(n_classes);
  }
  bad_requests_change_nothing();
  return letheon::testing::result();
}
