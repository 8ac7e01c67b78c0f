// Readers while another thread forgets and learns: each answer belongs to one state of the forest,
// and readers without pause do not keep the other thread waiting.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/forest.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using forest::Forest;
using letheon::testing::check;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;
using letheon::testing::Shape;

constexpr std::size_t kStates = 25;
constexpr std::size_t kPerState = 4;

People one_row_each(Luck& luck, const Shape& shape) {
  People people = random_people(luck, shape);
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    people.ints[i] = static_cast<std::int64_t>(i);
  }
  return people;
}

People from(const People& people, std::size_t first, std::size_t last) {
  std::vector<std::size_t> rows;
  for (std::size_t i = first; i < last; ++i) {
    rows.push_back(i);
  }
  return people.take(rows);
}

void readers_see_one_state(const Shape& shape, bool eager) {
  Luck luck(5);
  const People people = one_row_each(luck, shape);
  forest::Spec spec;
  spec.n_columns = static_cast<std::uint32_t>(shape.n_columns);
  spec.criterion =
      shape.n_classes == 0 ? forest::Criterion::squared_error : forest::Criterion::gini;
  spec.max_features = 2;
  spec.n_thresholds = 3;
  spec.random_depth = 1;
  spec.cache_rows = 10;
  spec.tree_keys = {1, 2, 3, 4, 5};

  const auto order = counting(shape.n_classes);
  const auto matrix = people.matrix();
  std::vector<std::vector<double>> answers;
  std::vector<std::vector<std::uint8_t>> trees;
  for (std::size_t state = 0; state <= kStates; ++state) {
    Forest fresh(spec);
    const People left = from(people, state * kPerState, people.n_rows());
    fresh.fit(left.batch(), shape.n_classes, left.ids(), 1);
    answers.push_back(fresh.predict(matrix, 1).values);
    trees.push_back(fresh.trees_bytes(order, 1));
  }

  Forest shared(spec);
  shared.fit(people.batch(), shape.n_classes, people.ids(), 1);
  std::atomic<bool> going = true;
  std::atomic<int> n_wrong = 0;
  std::atomic<int> n_read = 0;
  {
    std::vector<std::jthread> readers;
    for (int reader = 0; reader < 3; ++reader) {
      readers.emplace_back([&, reader] {
        while (going) {
          const bool known =
              reader == 0 ? std::ranges::find(trees, shared.trees_bytes(order, 2)) != trees.end()
                          : std::ranges::find(answers, shared.predict(matrix, 2).values) !=
                                answers.end();
          n_wrong += known ? 0 : 1;
          static_cast<void>(shared.find(people.ids()));
          static_cast<void>(shared.n_bytes());
          ++n_read;
        }
      });
    }
    for (std::size_t state = 0; state < kStates; ++state) {
      const People leaving = from(people, state * kPerState, (state + 1) * kPerState);
      shared.forget(shared.find(leaving.ids()).slots, eager, 2);
      std::this_thread::yield();
    }
    for (std::size_t state = kStates; state > 0; --state) {
      const People coming = from(people, (state - 1) * kPerState, state * kPerState);
      shared.learn(coming.batch(), shape.n_classes, coming.ids(), eager, 2);
    }
    while (n_read < 10) {
      std::this_thread::yield();
    }
    going = false;
  }
  check(n_wrong == 0, "every answer is that of one state");
  check(shared.trees_bytes(order, 1) == trees.front(), "back where it began");
}

void results_do_not_depend_on_the_number_of_threads() {
  Luck luck(6);
  const Shape shape{.n_rows = 300, .n_columns = 5, .n_classes = 3};
  const People people = one_row_each(luck, shape);
  forest::Spec spec = random_spec(luck, shape);
  spec.tree_keys.resize(45, 9);
  spec.sample_keys.clear();
  std::vector<std::vector<std::uint8_t>> bytes;
  for (const std::size_t n_threads : {1u, 2u, 7u}) {
    Forest made(spec);
    made.fit(people.batch(), 3, people.ids(), n_threads);
    made.forget(std::vector<letheon::Slot>{1, 5, 250}, true, n_threads);
    bytes.push_back(made.trees_bytes(counting(3), n_threads));
  }
  check(bytes[0] == bytes[1] && bytes[0] == bytes[2], "one, two or seven threads");
}

}  // namespace

int main() {
  const Shape shape{.n_rows = 160, .n_columns = 3, .n_classes = 2};
  readers_see_one_state(shape, false);
  readers_see_one_state(shape, true);
  readers_see_one_state({.n_rows = 160, .n_columns = 3, .n_classes = 0}, false);
  results_do_not_depend_on_the_number_of_threads();
  return letheon::testing::result();
}
