// Forgetting and learning in any order give the model that a fresh fit on the same rows gives.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <ranges>
#include <vector>

#include "checks.hpp"
#include "letheon/boosting/model.hpp"
#include "people.hpp"

namespace letheon::boosting {

struct ModelProbe {
  static std::size_t n_slots(const Model& model) { return model.content_.table.n_slots(); }

  // Whether codes and scores of these slots are wiped; also of slots behind the last row.
  template <typename Slots>
  static bool are_wiped(const Model& model, const Slots& slots) {
    const auto& content = model.content_;
    const std::size_t width = content.frame.n_outputs;
    return std::ranges::all_of(slots, [&](std::size_t slot) {
      return std::ranges::all_of(content.codes, [&](const auto& codes) {
               return codes.data()[slot] == kErased;
             }) &&
             std::ranges::all_of(content.checks, [&](const auto& states) {
               const State* const own = states.data() + slot * width;
               return std::all_of(own, own + width, [](State state) { return state == 0; });
             });
    });
  }
};

}  // namespace letheon::boosting

namespace {

namespace boosting = letheon::boosting;
using boosting::ModelProbe;
using boosting::Model;
using boosting::Report;
using letheon::testing::check;
using letheon::testing::check_refused;
using letheon::testing::counting;
using letheon::testing::Luck;
using letheon::testing::People;
using letheon::testing::Shape;

boosting::Spec random_settings(Luck& luck, const Shape& shape) {
  boosting::Spec spec;
  spec.loss = shape.n_classes > 0 ? boosting::Loss::logistic
              : luck.one_in(2)    ? boosting::Loss::squared
                                  : boosting::Loss::poisson;
  spec.n_columns = static_cast<std::uint32_t>(shape.n_columns);
  // Check points are kept every 16 rounds: their borders are worth many lives.
  spec.n_rounds = 1 + (luck.one_in(2) ? 15 + luck.below(25) : luck.below(9));
  spec.max_leaves = 2 + luck.below(63);
  spec.rate = 100 + luck.below(900);
  spec.step_bits = 2 + luck.below(7);
  spec.l2 = luck.one_in(4) ? 0 : 1 << luck.below(18);
  spec.n_chains = 1 + luck.below(std::min(spec.n_rounds, 4u));
  spec.chain_people = 1 + luck.below(40);
  spec.max_bins = 2 + luck.below(luck.one_in(2) ? 10 : 250);
  spec.min_samples_leaf = 1 + luck.below(4);
  spec.tree_columns = 1 + luck.below(spec.n_columns);
  spec.key = luck.next();
  if (luck.one_in(3)) {
    for (std::size_t j = 0; j < shape.n_columns; ++j) {
      spec.is_categorical.push_back(luck.one_in(2) ? 1 : 0);
    }
  }
  return spec;
}

// A model with a history, and the rows that it must hold.
class History {
 public:
  explicit History(std::uint64_t seed) : luck_(seed) {
    shape_ = {.n_rows = 10 + luck_.below(luck_.one_in(4) ? 700 : 120),
              .n_columns = 1 + luck_.below(6),
              .n_classes = static_cast<std::uint32_t>(seed % 5),
              .missing = luck_.one_in(3),
              .weighted = luck_.one_in(3),
              .text = luck_.one_in(3)};
    pool_ = random_people(luck_, shape_);
    spec_ = random_settings(luck_, shape_);
    for (double& y : pool_.y) {
      y *= luck_.one_in(15) ? 100.0 : 1.0;
      y = spec_.loss == boosting::Loss::poisson ? std::fabs(y) : y;
    }
    if (!pool_.weights.empty() && luck_.one_in(2)) {
      spread_weights();
    }
    factors_.assign(shape_.n_classes, 1);
    for (std::size_t i = 0; i < pool_.n_rows(); ++i) {
      (luck_.one_in(3) ? outside_ : inside_).push_back(i);
    }
    if (inside_.empty()) {
      inside_.swap(outside_);
    }
    model_ = fit(pool_.take(inside_), 1);
  }

  void step() {
    if (luck_.one_in(12) && shape_.n_classes > 0) {
      reweigh();
    }
    switch (luck_.below(6)) {
      case 0:
      case 1:
        learn();
        break;
      case 2:
        reload();
        break;
      default:
        forget();
    }
    if (luck_.one_in(4)) {
      const std::size_t n_before = ModelProbe::n_slots(*model_);
      model_->settle(1 + luck_.below(2));
      check(model_->is_settled(), "settled");
      check(ModelProbe::are_wiped(*model_, std::views::iota(ModelProbe::n_slots(*model_), n_before)),
            "memory of rows that moved is wiped");
    }
    if (luck_.one_in(2)) {
      compare();
    }
  }

  void compare() {
    std::vector<std::size_t> shuffled = inside_;
    for (std::size_t i = shuffled.size(); i > 1; --i) {
      std::swap(shuffled[i - 1], shuffled[luck_.below(i)]);
    }
    const auto fresh = fit(pool_.take(shuffled), 2);
    check(model_->trees_bytes(1) == fresh->trees_bytes(1), "trees");
    const auto matrix = pool_.matrix();
    const auto n_rounds = luck_.below(spec_.n_rounds + 1);
    check(model_->predict(matrix, n_rounds, 1).values == fresh->predict(matrix, n_rounds, 2).values,
          "predictions");
    check(model_->importances() == fresh->importances(), "importances");
    check(model_->n_rows() == inside_.size(), "number of rows");
    check(model_->class_counts() == fresh->class_counts(), "classes");
  }

 private:
  [[nodiscard]] std::unique_ptr<Model> fit(const People& people, std::size_t n_threads) const {
    auto made = std::make_unique<Model>(spec_, letheon::Key{1, 2});
    const auto order = counting(shape_.n_classes);
    made->fit(people.batch(), {shape_.n_classes, order}, people.ids(), n_threads);
    return made;
  }

  [[nodiscard]] bool same_owner(std::size_t a, std::size_t b) const {
    return pool_.is_text ? pool_.text(a) == pool_.text(b) : pool_.ints[a] == pool_.ints[b];
  }

  void forget() {
    std::vector<std::size_t> wanted;
    const std::uint64_t share = luck_.one_in(4) ? 3 : inside_.size();
    const bool whole_class = shape_.n_classes > 0 && luck_.one_in(6);
    const std::uint32_t label = whole_class ? luck_.below(shape_.n_classes) : 0;
    std::ranges::copy_if(inside_, std::back_inserter(wanted), [&](std::size_t i) {
      return whole_class ? pool_.labels[i] == label : luck_.one_in(share);
    });
    std::vector<std::size_t> left;
    std::ranges::copy_if(inside_, std::back_inserter(left), [&](std::size_t i) {
      return std::ranges::none_of(wanted, [&](std::size_t j) { return same_owner(i, j); });
    });
    if (wanted.empty() || left.empty()) {
      return;
    }
    const letheon::Found found = model_->find(pool_.take(wanted).ids());
    check(found.slots.size() == inside_.size() - left.size(), "all rows are found");
    const Report whole = model_->forget_cost(found.slots, true);
    check(whole.everything && whole.chains == spec_.n_chains && whole.rounds == spec_.n_rounds,
          "other weights of classes change everything");
    const Report cost = model_->forget_cost(found.slots);
    const bool eager = luck_.one_in(3);
    const Report report = model_->forget(found.slots, eager, 1 + luck_.below(2));
    check(eager || ModelProbe::are_wiped(*model_, found.slots), "rows that left are wiped");
    check(cost.chains == report.chains && cost.trees == report.trees &&
              cost.rounds == report.rounds && cost.everything == report.everything,
          "the cost is what it costs");
    for (const std::size_t i : inside_) {
      if (std::ranges::find(left, i) == left.end()) {
        outside_.push_back(i);
      }
    }
    inside_ = left;
  }

  void learn() {
    std::vector<std::size_t> coming;
    std::vector<std::size_t> rest;
    // Few rows walk through the rounds; many make all values stale.
    const std::uint64_t share = luck_.one_in(3) ? 4 : outside_.size();
    for (const std::size_t i : outside_) {
      (luck_.one_in(share) ? coming : rest).push_back(i);
    }
    if (coming.empty()) {
      return;
    }
    const People people = pool_.take(coming);
    const auto order = counting(shape_.n_classes);
    model_->learn(people.batch(), {shape_.n_classes, order}, people.ids(), luck_.one_in(3), 1);
    inside_.insert(inside_.end(), coming.begin(), coming.end());
    outside_ = rest;
  }

  // Weights as they are in steps of 2^-16, up to the largest total.
  void spread_weights() {
    const std::uint64_t most = ((std::uint64_t{1} << 30) - 1) / pool_.n_rows();
    const std::uint64_t limit = luck_.one_in(3) ? most : std::min<std::uint64_t>(most, 1 << 16);
    for (std::uint32_t& weight : pool_.weights) {
      weight = weight == 0 ? 0 : 1 + luck_.below(limit);
    }
    spec_.l2 = luck_.one_in(4) ? boosting::kMostL2 : spec_.l2 << luck_.below(25);
    spec_.min_samples_leaf = 1 + luck_.below(limit);
  }

  // New weights of classes: small factors, so that the total stays below 2^31.
  void reweigh() {
    std::vector<std::uint32_t> after;
    for (std::uint32_t c = 0; c < shape_.n_classes; ++c) {
      after.push_back(1 + luck_.below(2));
    }
    model_->reweigh(factors_, after);
    pool_.weights.resize(pool_.n_rows(), 1);
    for (std::size_t i = 0; i < pool_.n_rows(); ++i) {
      const std::uint32_t label = pool_.labels[i];
      pool_.weights[i] = pool_.weights[i] / factors_[label] * after[label];
    }
    factors_ = after;
  }

  void reload() {
    const auto bytes = model_->trees_bytes(1);
    const People people = pool_.take(inside_);
    const auto order = counting(shape_.n_classes);
    auto twin = std::make_unique<Model>(spec_, letheon::Key{3, 4});
    twin->restore(people.batch(), {shape_.n_classes, order}, people.ids(), bytes, 1);
    check(twin->trees_bytes(1) == bytes, "trees are written as they were read");
    const auto cost = boosting::restore_cost(
        {spec_.n_rounds, inside_.size(), spec_.n_columns, shape_.n_classes, 64 * inside_.size()});
    check(twin->n_bytes() <= cost.bytes, "a model takes no more than was counted");
    model_ = std::move(twin);
  }

  Luck luck_;
  Shape shape_;
  People pool_;
  boosting::Spec spec_;
  std::unique_ptr<Model> model_;
  std::vector<std::uint32_t> factors_;  // of the classes, in the weights of the pool
  std::vector<std::size_t> inside_;
  std::vector<std::size_t> outside_;
};

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

int main() {
  // LETHEON_LIVES: how many histories; LETHEON_FIRST_LIFE: the seed of the first one.
  const std::uint64_t n_lives = number_of("LETHEON_LIVES", 1800);
  const std::uint64_t first = number_of("LETHEON_FIRST_LIFE", 0);
  constexpr int kSteps = 12;
  for (std::uint64_t seed = first; seed < first + n_lives; ++seed) {
    const int n_failures = letheon::testing::failures;
    History history(seed);
    for (int i = 0; i < kSteps; ++i) {
      history.step();
    }
    history.compare();
    if (letheon::testing::failures > n_failures) {
      std::fprintf(stderr, "in the life of LETHEON_FIRST_LIFE=%llu\n",
                   static_cast<unsigned long long>(seed));
    }
  }
  return letheon::testing::result();
}
