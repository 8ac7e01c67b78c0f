// Rows and boosted trees from nowhere: the model refuses them with std::invalid_argument, or takes
// them and then works. Built with libFuzzer by `make fuzz`; the tests replay the saved inputs.
#include "fuzz_boosting.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "boosting_input.hpp"
#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/model.hpp"

namespace letheon::fuzz {

namespace {

using boosting::Model;
using boosting::Report;

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "VIOLATED: %s\n", what);
    std::abort();
  }
}

// The rows that the model holds; those of the input may be anything at weight 0.
testing::People held_by(const Model& model, std::uint32_t n_classes) {
  const letheon::RowsView rows = model.rows(testing::counting(n_classes));
  testing::People held{.n_columns = model.spec().n_columns,
                       .X = rows.X,
                       .labels = rows.labels,
                       .y = rows.y,
                       .weights = rows.weights,
                       .is_text = rows.is_text,
                       .ints = rows.ints,
                       .blob = rows.blob,
                       .offsets = rows.offsets};
  return held;
}

void require_sound(Model& model, const BoostingCase& made) {
  const testing::People held = held_by(model, made.n_classes);
  for (const double value : model.predict(held.matrix(), model.spec().n_rounds, 1).values) {
    require(std::isfinite(value), "a score is finite");
  }
  require(model.is_settled(), "nothing is stale after a prediction");
  const auto bytes = model.trees_bytes(1);
  require(bytes == model.trees_bytes(1), "the same trees have the same bytes");
  require(model.tree(0).kind.size() >= 1, "a tree has a node");
  for (const double share : model.importances()) {
    require(share >= 0.0, "an importance is not negative");
  }
}

void forget_some(Model& model, const BoostingCase& made) {
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < made.people.n_rows(); i += 3) {
    wanted.push_back(i);
  }
  const auto slots = model.find(made.people.take(wanted).ids()).slots;
  if (slots.empty() || slots.size() == model.n_rows()) {
    return;
  }
  const std::size_t n_before = model.n_rows();
  const Report cost = model.forget_cost(slots);
  const Report report = model.forget(slots, made.eager, 1);
  require(cost.chains == report.chains && cost.trees == report.trees &&
              cost.rounds == report.rounds,
          "the cost is what it costs");
  require(model.n_rows() == n_before - slots.size(), "the rows are gone");
  require_sound(model, made);
}

void weigh_classes(Model& model, const BoostingCase& made) {
  const std::vector<std::uint32_t> before(made.n_classes, 1);
  std::vector<std::uint32_t> after(made.n_classes, 3);
  after[0] = 2;
  try {
    model.reweigh(before, after);
  } catch (const std::invalid_argument&) {
    return;  // the weights would exceed the limit
  }
  if (made.eager) {
    require_sound(model, made);
  }
  model.reweigh(after, before);
}

// What a model is asked to do when it is in use.
void use(Model& model, const BoostingCase& made) {
  require(model.is_settled(), "a restored model is settled");
  require(model.trees_bytes(1) == made.trees, "trees are written as they were read");
  require_sound(model, made);
  forget_some(model, made);
  if (made.n_classes > 0) {
    weigh_classes(model, made);
  }
  try {
    const auto order = testing::counting(made.n_classes);
    model.learn(made.people.batch(), {made.n_classes, order}, made.people.ids(), made.eager, 1);
  } catch (const std::invalid_argument&) {
    // All rows twice may exceed the limit of the weight.
  }
  require_sound(model, made);
}

}  // namespace

bool try_boosting(Bytes input) {
  if (input.size() < kBoostingHeader) {
    return false;
  }
  BoostingCase made;
  std::unique_ptr<Model> model;
  try {
    made = read_boosting(input);
    model = std::make_unique<Model>(made.spec);
    const auto order = testing::counting(made.n_classes);
    model->restore(made.people.batch(), {made.n_classes, order}, made.people.ids(), made.trees, 1);
  } catch (const std::invalid_argument&) {
    return false;
  }
  const auto cost =
      boosting::restore_cost({made.spec.n_rounds, made.people.n_rows(), made.spec.n_columns,
                              made.n_classes, 64 * model->n_rows()});
  require(model->n_bytes() <= cost.bytes, "a model takes no more than was counted");
  use(*model, made);
  return true;
}

}  // namespace letheon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(letheon::fuzz::try_boosting({data, size}));
  return 0;
}
