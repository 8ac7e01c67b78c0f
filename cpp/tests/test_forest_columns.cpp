// Keys of columns, and columns that leave and come: the trees are those of a fresh fit.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/forest.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using forest::Forest;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;
using letheon::testing::Shape;

using Layout = std::vector<std::int64_t>;
using Keys = std::vector<std::uint32_t>;

std::unique_ptr<Forest> fitted(const forest::Spec& spec, const People& people,
                               std::uint32_t n_classes) {
  auto made = std::make_unique<Forest>(spec, letheon::Key{1, 2});
  made->fit(people.batch(), n_classes, people.ids(), 1);
  return made;
}

Shape random_shape(Luck& luck, std::uint64_t seed) {
  return {.n_rows = 20 + luck.below(80),
          .n_columns = 3 + luck.below(5),
          .n_classes = static_cast<std::uint32_t>(seed % 4),
          .missing = luck.one_in(3),
          .weighted = luck.one_in(3)};
}

// The same people with other columns: layout[j] is the number of the old one, or -1 for a constant.
People with_columns(const People& people, const Layout& layout, float fill) {
  People moved = people;
  moved.n_columns = layout.size();
  moved.X.clear();
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    for (const std::int64_t old : layout) {
      moved.X.push_back(
          old < 0 ? fill : people.X[i * people.n_columns + static_cast<std::size_t>(old)]);
    }
  }
  return moved;
}

// With keys, a forest is that of a table that has each column at the place that its key says, and
// constants elsewhere.
void keys_are_places(std::uint64_t seed) {
  Luck luck(seed);
  const Shape shape = random_shape(luck, seed);
  const People people = random_people(luck, shape);
  forest::Spec spec = random_spec(luck, shape);
  spec.categorical.clear();
  spec.cache_rows = luck.one_in(2) ? 2 : 48;
  Layout places(20, -1);
  for (std::size_t j = 0; j < shape.n_columns; ++j) {
    std::uint32_t key = luck.below(places.size());
    while (places[key] >= 0) {
      key = luck.below(places.size());
    }
    places[key] = static_cast<std::int64_t>(j);
    spec.column_keys.push_back(key);
  }
  forest::Spec plain = spec;
  plain.column_keys.clear();
  plain.n_columns = 20;
  const auto keyed = fitted(spec, people, shape.n_classes);
  const auto placed = fitted(plain, with_columns(people, places, 2.5f), shape.n_classes);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t t = 0; t < spec.tree_keys.size(); ++t) {
      const auto one = keyed->tree(t);
      auto other = placed->tree(t);
      for (std::int64_t& attribute : other.attribute) {
        attribute = attribute < 0 ? -1 : places[static_cast<std::size_t>(attribute)];
      }
      check(one.attribute == other.attribute && one.kind == other.kind, "attributes");
      check(one.weight == other.weight && one.values == other.values, "sums of nodes");
      check(std::ranges::equal(one.threshold, other.threshold,
                               [](float a, float b) {
                                 return std::bit_cast<std::uint32_t>(a) ==
                                        std::bit_cast<std::uint32_t>(b);
                               }),
            "thresholds");
    }
    const std::vector<letheon::Slot> leaving{static_cast<letheon::Slot>(2 * round + 1)};
    keyed->forget(leaving, false, 1);
    placed->forget(leaving, false, 1);
  }
}

// A pool of people whose last columns vary in a few rows only, and a forest that has just the
// columns that vary in its rows, or that once did.
class Columns {
 public:
  explicit Columns(std::uint64_t seed) : luck_(seed), shape_(random_shape(luck_, seed)) {
    pool_ = random_people(luck_, shape_);
    n_steady_ = 1 + luck_.below(2);
    for (std::size_t i = 0; i < pool_.n_rows(); ++i) {
      for (std::size_t j = n_steady_; j < shape_.n_columns; ++j) {
        pool_.X[i * shape_.n_columns + j] = luck_.one_in(20) ? 1.0f : 0.0f;
      }
      (luck_.one_in(3) ? outside_ : inside_).push_back(i);
    }
    base_ = random_spec(luck_, shape_);
    base_.categorical.clear();
    base_.cache_rows = luck_.one_in(2) ? 2 : 48;
    base_.max_features = 1 + luck_.below(n_steady_);
    takes_all_ = luck_.one_in(3);
    for (std::size_t j = 0; j < shape_.n_columns; ++j) {
      keys_.push_back(static_cast<std::uint32_t>(luck_.next()));
    }
    columns_ = wanted();
    forest_ = fitted(spec(), view(inside_), shape_.n_classes);
  }

  void step() {
    if (luck_.one_in(3) && !outside_.empty()) {
      move_some(outside_, inside_);
      grow_columns();
      learn();
    } else {
      forget();
    }
    if (luck_.one_in(2)) {
      change(wanted());
    }
    if (luck_.one_in(2)) {
      compare();
    }
  }

  void compare() {
    change(wanted());
    const auto fresh = fitted(spec(), view(inside_), shape_.n_classes);
    const auto order = counting(shape_.n_classes);
    check(forest_->trees_bytes(order, 1) == fresh->trees_bytes(order, 1), "trees");
    const People all = view(inside_);
    check(forest_->predict(all.matrix(), 1).values == fresh->predict(all.matrix(), 1).values,
          "predictions");
    check(forest_->importances(1) == fresh->importances(1), "importances");
    check(forest_->rows(order).ints == fresh->rows(order).ints, "rows");
  }

 private:
  [[nodiscard]] bool varies(std::size_t column) const {
    return std::ranges::any_of(inside_, [&](std::size_t i) {
      return pool_.X[i * shape_.n_columns + column] != 0.0f;
    });
  }

  [[nodiscard]] std::vector<std::size_t> wanted() const {
    std::vector<std::size_t> columns;
    for (std::size_t j = 0; j < shape_.n_columns; ++j) {
      if (j < n_steady_ || varies(j)) {
        columns.push_back(j);
      }
    }
    return columns;
  }

  [[nodiscard]] std::uint32_t max_features(std::size_t n_columns) const {
    return takes_all_ ? static_cast<std::uint32_t>(n_columns) : base_.max_features;
  }

  [[nodiscard]] Keys keys_of(const std::vector<std::size_t>& columns) const {
    Keys keys;
    for (const std::size_t j : columns) {
      keys.push_back(keys_[j]);
    }
    return keys;
  }

  [[nodiscard]] forest::Spec spec() const {
    forest::Spec spec = base_;
    spec.n_columns = static_cast<std::uint32_t>(columns_.size());
    spec.max_features = max_features(columns_.size());
    spec.column_keys = keys_of(columns_);
    return spec;
  }

  [[nodiscard]] People view(const std::vector<std::size_t>& rows) const {
    return with_columns(pool_.take(rows), {columns_.begin(), columns_.end()}, 0.0f);
  }

  void change(const std::vector<std::size_t>& columns) {
    Layout layout;
    for (const std::size_t j : columns) {
      const auto found = std::ranges::find(columns_, j);
      layout.push_back(found == columns_.end() ? -1 : found - columns_.begin());
    }
    const std::vector<float> fills(columns.size(), -0.0f);
    forest_->move_columns(layout, keys_of(columns), fills, max_features(columns.size()));
    columns_ = columns;
  }

  // Columns of the rows to come, and those that are there.
  void grow_columns() {
    std::vector<std::size_t> columns = wanted();
    columns.insert(columns.end(), columns_.begin(), columns_.end());
    std::ranges::sort(columns);
    const auto repeated = std::ranges::unique(columns);
    columns.erase(repeated.begin(), repeated.end());
    change(columns);
  }

  void move_some(std::vector<std::size_t>& from, std::vector<std::size_t>& to) {
    coming_.clear();
    const std::size_t n = 1 + luck_.below(std::min<std::size_t>(from.size(), 4));
    for (std::size_t k = 0; k < n; ++k) {
      const auto place = from.begin() + luck_.below(from.size());
      coming_.push_back(*place);
      from.erase(place);
    }
    to.insert(to.end(), coming_.begin(), coming_.end());
  }

  void learn() {
    const People people = view(coming_);
    forest_->learn(people.batch(), shape_.n_classes, people.ids(), luck_.one_in(2), 1);
  }

  void forget() {
    const std::int64_t person = pool_.ints[inside_[luck_.below(inside_.size())]];
    const auto goes = [&](std::size_t i) { return pool_.ints[i] == person; };
    if (std::ranges::all_of(inside_, goes)) {
      return;
    }
    const std::vector<std::int64_t> ids{person};
    forest_->forget(forest_->find({false, ids, {}, {}}).slots, luck_.one_in(2), 1);
    std::erase_if(inside_, [&](std::size_t i) {
      if (goes(i)) {
        outside_.push_back(i);
      }
      return goes(i);
    });
  }

  Luck luck_;
  Shape shape_;
  People pool_;
  forest::Spec base_;
  bool takes_all_ = false;
  std::size_t n_steady_ = 1;
  Keys keys_;
  std::vector<std::size_t> columns_, inside_, outside_, coming_;
  std::unique_ptr<Forest> forest_;
};

void refusals() {
  Luck luck(1);
  const Shape shape{.n_rows = 30, .n_columns = 3, .n_classes = 2};
  People people = random_people(luck, shape);
  for (std::size_t i = 0; i < 30; ++i) {
    people.X[i * 3 + 2] = i == 4 ? 1.0f : 0.0f;
  }
  forest::Spec spec = random_spec(luck, shape);
  spec.categorical.clear();
  spec.max_features = 2;
  spec.column_keys = {7, 7, 9};
  check_refused([&] { spec.validate(); }, "keys that repeat");
  spec.column_keys = {7, 8};
  check_refused([&] { spec.validate(); }, "too few keys");
  spec.column_keys = {7, 8, 9};
  const auto made = fitted(spec, people, 2);
  const auto before = made->trees_bytes(counting(2), 1);
  const auto refused = [&](const Layout& layout, const Keys& keys, std::uint32_t max_features,
                           const char* what, float fill = 0.0f) {
    const std::vector<float> fills(layout.size(), fill);
    check_refused([&] { made->move_columns(layout, keys, fills, max_features); }, what);
    check(made->spec().n_columns == 3 && made->spec().max_features == 2, "nothing has changed");
    check(made->trees_bytes(counting(2), 1) == before, "the same trees");
  };
  refused({0, 1}, {7, 8}, 2, "a column that varies");
  refused({0, 1, 2}, {7, 9, 8}, 2, "other keys");
  refused({0, 1, 2, 3}, {7, 8, 9, 10}, 2, "no such column");
  refused({0, 1, 2, 2}, {7, 8, 9, 9}, 2, "a column twice");
  refused({0, 1, 2, -1}, {7, 8, 9, 9}, 2, "a key twice");
  refused({0, 1, 2, -1}, {7, 8, 9, 10}, 3, "another number of attributes");
  refused({0, 1, 2}, {7, 8}, 2, "keys of other columns");
  refused({0, 1, 2, -1}, {7, 8, 9, 10}, 2, "infinity", std::numeric_limits<float>::infinity());
  refused({}, {}, 2, "no column");
  const std::vector<letheon::Slot> rare{4};
  check(!made->is_constant(2, {}) && made->is_constant(2, rare), "constant without a row");
  check(!made->is_constant(0, rare), "varies without it");
  check_refused([&] { static_cast<void>(made->is_constant(3, rare)); }, "no such column");
  made->forget(rare, false, 1);
  made->move_columns(Layout{0, 1}, Keys{7, 8}, std::vector<float>(2, 0.0f), 2);
  check(made->spec().n_columns == 2, "two columns");
  check_refused([&] { static_cast<void>(made->predict(people.matrix(), 1)); }, "too wide");
  check_refused([&] { static_cast<void>(made->apply(people.matrix(), 1)); }, "too wide");
}

}  // namespace

int main() {
  refusals();
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    keys_are_places(seed);
    Columns columns(seed);
    for (int step = 0; step < 25; ++step) {
      columns.step();
    }
    columns.compare();
  }
  return letheon::testing::result();
}
