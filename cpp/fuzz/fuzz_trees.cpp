// Rows and trees from nowhere: the forest refuses them with std::invalid_argument, or takes them
// and then works. Built with libFuzzer by `make fuzz`; the tests replay the saved inputs.
#include "fuzz_trees.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "input.hpp"
#include "letheon/forest/codec.hpp"
#include "letheon/forest/forest.hpp"

namespace letheon::fuzz {

namespace {

using forest::Answer;
using forest::Forest;
using forest::Report;

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "VIOLATED: %s\n", what);
    std::abort();
  }
}

void require_shares(const Answer& answer) {
  for (std::size_t i = 0; i < answer.values.size(); i += answer.width) {
    double sum = 0.0;
    for (std::size_t c = 0; c < answer.width; ++c) {
      require(answer.values[i + c] >= 0.0, "a share is not negative");
      sum += answer.values[i + c];
    }
    require(std::fabs(sum - 1.0) < 1e-9, "shares sum to one");
  }
}

// Asks about the rows that the forest holds; those of the input may be anything at weight 0.
void require_answers(Forest& forest, std::uint32_t n_classes) {
  const letheon::RowsView rows = forest.rows(testing::counting(n_classes));
  const testing::People held{.n_columns = forest.spec().n_columns, .X = rows.X};
  const Answer answer = forest.predict(held.matrix(), 1);
  if (!forest.spec().is_regression()) {
    require_shares(answer);
    return;
  }
  for (const double value : answer.values) {
    require(std::isfinite(value), "a predicted number is finite");
  }
}

void require_sound(Forest& forest, std::uint32_t n_classes) {
  require_answers(forest, n_classes);
  const auto order = testing::counting(n_classes);
  const auto bytes = forest.trees_bytes(order, 1);
  require(forest.n_unbuilt() == 0, "nothing is unbuilt after a look at all trees");
  require(bytes == forest.trees_bytes(order, 1), "the same trees have the same bytes");
  require(forest.tree(0).kind.size() >= 1, "a tree has a node");
}

// What a forest is asked to do when it is in use.
void use(Forest& forest, const Case& made) {
  require(forest.n_unbuilt() == 0, "restored trees are built");
  if (made.blocks.size() == 1) {
    const auto bytes = forest.trees_bytes(testing::counting(made.n_classes), 1);
    require(bytes == made.trees, "trees are written as they were read");
  }
  require_sound(forest, made.n_classes);
  std::vector<Slot> leaving;
  for (Slot slot = 0; slot + 1 < forest.n_rows(); slot += 3) {
    leaving.push_back(slot);
  }
  if (!leaving.empty()) {
    const Report cost = forest.forget_cost(leaving, 1);
    const std::size_t n_before = forest.n_rows();
    const Report report = forest.forget(leaving, made.eager, 1);
    require(cost.rebuilt_rows == report.rebuilt_rows, "the cost names the rows");
    require(cost.rebuilt_nodes == report.rebuilt_nodes, "the cost names the subtrees");
    require(forest.n_rows() == n_before - leaving.size(), "the rows are gone");
    require_sound(forest, made.n_classes);
  }
  try {
    forest.learn(made.people.batch(), made.n_classes, made.people.ids(), made.eager, 1);
  } catch (const std::invalid_argument&) {
    // All rows twice may exceed the limit of the weight.
  }
  require_sound(forest, made.n_classes);
}

}  // namespace

bool try_input(Bytes input) {
  if (input.size() < kHeader) {
    return false;
  }
  Case made;
  std::unique_ptr<Forest> forest;
  try {
    made = read_case(input);
    forest = std::make_unique<Forest>(made.spec);
    forest->restore(made.people.batch(), made.n_classes, made.people.ids(), made.blocks, 1);
  } catch (const std::invalid_argument&) {
    return false;
  }
  if (made.blocks.size() == 1) {
    const auto cost = forest::restore_cost(
        made.trees, {made.spec.tree_keys.size(), made.people.batch().X.n_rows, made.spec.n_columns,
                     made.n_classes, made.spec.is_regression(), 64 * forest->n_rows()});
    require(forest->n_bytes() <= cost.bytes, "a forest takes no more than was counted");
  }
  use(*forest, made);
  return true;
}

}  // namespace letheon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(letheon::fuzz::try_input({data, size}));
  return 0;
}
