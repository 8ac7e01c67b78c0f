// The rules of boosting, against plain computations: tables, first splits, leaf sums and values;
// and that damaged bytes are refused.
#include <algorithm>
#include <cmath>
#include <vector>

#include "checks.hpp"
#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/loss.hpp"
#include "letheon/boosting/model.hpp"
#include "people.hpp"

namespace {

namespace boosting = letheon::boosting;
using boosting::Model;
using boosting::Spec;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;

void test_tables() {
  const auto& tables = boosting::loss_tables();
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < tables.sigmoid.size(); ++i) {
    const double x = (static_cast<double>(i) - boosting::kWidest) / 256.0;
    check(std::fabs(tables.sigmoid[i] - 32768.0 / (1.0 + std::exp(-x))) <= 0.501, "sigmoid");
    hash = letheon::mix64(hash, tables.sigmoid[i]);
  }
  for (std::size_t i = 0; i < tables.decay.size(); ++i) {
    const double exact = std::exp(-static_cast<double>(i) / 256.0) * 0x1p30;
    check(std::fabs(tables.decay[i] - exact) <= 0.51, "exponential");
    hash = letheon::mix64(hash, tables.decay[i]);
  }
  for (std::size_t i = 0; i < tables.mean.size(); ++i) {
    const double x = (static_cast<double>(i) - boosting::kWidest) / 256.0;
    check(std::fabs(tables.mean[i] - std::exp(x) * 32768.0) <= 1.01, "mean");
    hash = letheon::mix64(hash, static_cast<std::uint64_t>(tables.mean[i]));
  }
  check(hash == 699443651112137596u, "the tables are those of every machine: " + std::to_string(hash));
  check(boosting::log_ratio(1, 1) == 0 && boosting::log_ratio(1, 0) == boosting::kWidest,
        "logarithms");
  check(std::abs(boosting::log_ratio(3, 1) - 281) <= 1, "log 3 is 281.2 / 256");
}

Spec plain_spec(const People& people, std::uint32_t n_rounds) {
  Spec spec;
  spec.n_columns = static_cast<std::uint32_t>(people.n_columns);
  spec.n_rounds = n_rounds;
  spec.n_chains = 1;
  spec.tree_columns = spec.n_columns;
  spec.max_bins = 254;
  spec.min_samples_leaf = 1;
  spec.key = 77;
  return spec;
}

struct NodeSums {
  double g = 0.0;
  double h = 0.0;
};

// The largest gain of a split of all rows, by trying all values in double precision.
double best_gain(const People& people, double p, std::size_t* column) {
  double best = 0.0;
  const auto score = [](const NodeSums& s) { return s.g * s.g / (s.h + 1.0); };
  for (std::size_t j = 0; j < people.n_columns; ++j) {
    for (std::size_t c = 0; c < people.n_rows(); ++c) {
      NodeSums left;
      NodeSums right;
      for (std::size_t i = 0; i < people.n_rows(); ++i) {
        const bool is_left = people.X[i * people.n_columns + j] <= people.X[c * people.n_columns + j];
        NodeSums& side = is_left ? left : right;
        side.g += p - people.labels[i];
        side.h += p * (1.0 - p);
      }
      const double gain = score(left) + score(right) -
                          score({left.g + right.g, left.h + right.h});
      if (right.h > 0.0 && gain > best) {
        best = gain;
        *column = j;
      }
    }
  }
  return best;
}

void test_first_split(std::uint64_t seed) {
  Luck luck(seed);
  const People people = random_people(luck, {.n_rows = 150, .n_columns = 4, .n_classes = 2});
  Spec spec = plain_spec(people, 1);
  spec.max_leaves = 2;
  Model model(spec, {1, 2});
  const auto order = counting(2);
  model.fit(people.batch(), {2, order}, people.ids(), 1);
  const auto trees = boosting::read_trees(model.trees_bytes(1), 1, spec);
  const double n_positive = static_cast<double>(std::ranges::count(people.labels, 1u));
  const double p = n_positive / static_cast<double>(people.n_rows());
  std::size_t column = 0;
  const double best = best_gain(people, p, &column);
  if (trees[0].splits.empty()) {
    check(best < 1e-3, "a tree without splits has no gain");
    return;
  }
  // The gain of the split that was chosen, by the same computation.
  const auto& split = trees[0].splits[0];
  People chosen = people;
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    for (std::size_t j = 0; j < people.n_columns; ++j) {
      chosen.X[i * people.n_columns + j] =
          split.sends_left(people.X[i * people.n_columns + split.column]) ? 0.0f : 1.0f;
    }
  }
  check(best_gain(chosen, p, &column) > 0.99 * best, "the first split has the largest gain");
}

// Leaf sums and values by the definition, row by row.
void test_values(std::uint64_t seed) {
  Luck luck(seed);
  const People people = random_people(
      luck, {.n_rows = 300, .n_columns = 5, .n_classes = 2, .missing = true, .weighted = seed % 2 == 0});
  Spec spec = plain_spec(people, 20);
  spec.n_chains = 3;
  Model model(spec, {1, 2});
  const auto order = counting(2);
  model.fit(people.batch(), {2, order}, people.ids(), 2);
  const auto trees = boosting::read_trees(model.trees_bytes(1), 1, spec);
  const auto& sigmoid = boosting::loss_tables().sigmoid;
  const auto base = model.predict(people.matrix(), 0, 1).values;
  std::vector<int> scores(people.n_rows(), static_cast<int>(std::lround(base[0] * 16.0)));
  for (std::size_t t = 0; t < trees.size(); ++t) {
    std::vector<std::int64_t> g(trees[t].leaves.size());
    std::vector<std::int64_t> h(trees[t].leaves.size());
    std::vector<std::size_t> leaf_of(people.n_rows());
    for (std::size_t i = 0; i < people.n_rows(); ++i) {
      const float* const x = people.X.data() + i * people.n_columns;
      leaf_of[i] = trees[t].leaf_of([&](std::uint32_t column) { return x[column]; });
      const int place = std::clamp(scores[i] * 16, -boosting::kWidest, boosting::kWidest);
      const std::int64_t p = sigmoid[static_cast<std::size_t>(place + boosting::kWidest)];
      const std::int64_t w = people.weights.empty() ? 1 : people.weights[i];
      g[leaf_of[i]] += w * (p - (people.labels[i] == 1 ? 32768 : 0));
      h[leaf_of[i]] += w * (p * (32768 - p) >> 15);
    }
    for (std::size_t l = 0; l < g.size(); ++l) {
      const auto& leaf = trees[t].leaves[l];
      check(leaf.g == g[l] && leaf.h == h[l], "sums of a leaf");
      const double exact = -static_cast<double>(g[l]) * (307.0 / 1024.0) * 16.0 /
                           static_cast<double>(h[l] + 32768);
      check(leaf.step > exact - 1.001 && leaf.step < exact + 1.001, "a value is rounded by less than a step");
    }
    for (std::size_t i = 0; i < people.n_rows(); ++i) {
      scores[i] += trees[t].leaves[leaf_of[i]].step;
    }
  }
  const auto last = model.predict(people.matrix(), 100, 1).values;
  for (std::size_t i = 0; i < people.n_rows(); ++i) {
    check(last[i] == scores[i] / 16.0, "the score is the sum of the values");
  }
}

void test_damaged_bytes() {
  Luck luck(5);
  const People people = random_people(luck, {.n_rows = 60, .n_columns = 3, .n_classes = 3});
  const Spec spec = plain_spec(people, 3);
  Model model(spec, {1, 2});
  const auto order = counting(3);
  model.fit(people.batch(), {3, order}, people.ids(), 1);
  const auto bytes = model.trees_bytes(1);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] = static_cast<std::uint8_t>(damaged[i] ^ (1 + luck.below(255)));
    Model twin(spec, {1, 2});
    try {
      twin.restore(people.batch(), {3, order}, people.ids(), damaged, 1);
      // A threshold between two values can be another one: then nothing else may differ.
      check(twin.trees_bytes(1) == damaged, "bytes that are accepted are written again");
    } catch (const std::invalid_argument&) {
      continue;
    }
  }
  for (std::size_t n = 0; n < bytes.size(); n += 7) {
    check_refused([&] { static_cast<void>(boosting::read_trees({bytes.data(), n}, 3, spec)); },
                  "bytes that end too early");
  }
}

void test_bad_input() {
  Luck luck(6);
  const People people = random_people(luck, {.n_rows = 40, .n_columns = 3, .n_classes = 2});
  const Spec spec = plain_spec(people, 3);
  Model model(spec, {1, 2});
  const auto order = counting(2);
  model.fit(people.batch(), {2, order}, people.ids(), 1);
  const auto bytes = model.trees_bytes(1);
  // Rows 3 and 4 belong to one person.
  const std::vector<std::size_t> owner_of_two{3};
  std::vector<letheon::Slot> part = model.find(people.take(owner_of_two).ids()).slots;
  check(part.size() > 1, "a person with several rows");
  part.pop_back();
  check_refused([&] { model.forget(part, true, 1); }, "a part of a person's rows");
  const std::vector<letheon::Slot> unordered{5, 2};
  check_refused([&] { model.forget(unordered, true, 1); }, "slots out of order");
  const auto one = counting(1);
  check_refused([&] { model.learn(people.batch(), {2, one}, people.ids(), true, 1); },
                "a class that is not in the order");
  People infinite = people;
  infinite.X[4] = INFINITY;
  check_refused([&] { model.learn(infinite.batch(), {2, order}, people.ids(), true, 1); },
                "infinity");
  check(model.trees_bytes(1) == bytes && model.n_rows() == 40, "nothing has changed");
}

}  // namespace

int main() {
  test_tables();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    test_first_split(seed);
    test_values(seed);
  }
  test_damaged_bytes();
  test_bad_input();
  return letheon::testing::result();
}
