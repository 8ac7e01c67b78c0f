#include "boosting_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/frame.hpp"
#include "letheon/boosting/model.hpp"
#include "letheon/boosting/values.hpp"
#include "letheon/common/id_table.hpp"
#include "source.hpp"

namespace letheon::fuzz {

namespace {

using boosting::Frame;
using boosting::Spec;
using boosting::Tree;

Spec read_spec(Bytes head, testing::Luck& luck) {
  constexpr std::array<std::uint32_t, 8> kRounds{1, 1, 2, 2, 3, 3, 4, 17};
  constexpr std::array<std::uint32_t, 8> kStepBits{2, 3, 4, 2, 3, 4, 2, 8};
  const std::array losses{boosting::Loss::logistic, boosting::Loss::squared,
                          boosting::Loss::poisson, boosting::Loss::logistic};
  Spec spec;
  spec.loss = losses[head[0] & 3];
  spec.n_columns = 1 + head[2] % 4u;
  spec.n_rounds = kRounds[head[3] % 8];
  spec.n_chains = std::min(spec.n_rounds, 1 + head[3] / 16 % 4u);
  spec.max_leaves = 2 + head[4] % 16u;
  spec.step_bits = kStepBits[head[4] / 16 % 8];
  spec.rate = 1 + luck.below(1024);
  spec.chain_people = 1 + head[5] % 4u * 8;
  spec.l2 = (head[5] & 4) != 0 ? boosting::kMostL2 : (head[5] & 8) != 0 ? 0 : spec.l2;
  spec.max_bins = 2 + luck.below(20);
  spec.min_samples_leaf = 1 + luck.below(3);
  spec.tree_columns = spec.n_columns;
  spec.key = luck.next();
  if ((head[5] & 32) != 0 && spec.is_regression()) {
    spec.y_exponent = 10;
  }
  for (std::uint32_t j = 0; (head[5] & 64) != 0 && j < spec.n_columns; ++j) {
    spec.is_categorical.push_back(static_cast<std::uint8_t>(head[6] >> j & 1));
  }
  return spec;
}

// Writes trees whose leaves are right and whose splits are the input's: forgeries that no check of
// sums can find.
class BoostingForger {
 public:
  BoostingForger(const Spec& spec, std::uint32_t n_classes, const testing::People& people)
      : spec_(spec), table_(spec.n_columns, spec.is_regression(), spec.y_exponent) {
    const Batch batch = people.batch();
    const auto slots = table_.append(batch, n_classes);
    table_.rescale();
    IdTable ids{Key{}};
    people.ids().validate();
    ids.append(people.ids(), rows_with_weight(batch));
    boosting::RowTotals totals{ids.count_people(slots), table_.class_weights(),
                               table_.exponent(), {}};
    for (Slot slot = 0; spec.is_regression() && slot < table_.n_slots(); ++slot) {
      totals.sums.add(table_.weight(slot), table_.q(slot));
    }
    if (slots.empty()) {
      throw std::invalid_argument("there is no row of positive weight");
    }
    frame_ = boosting::make_frame(spec, totals, testing::counting(n_classes));
    rank_.assign(n_classes, 0);
    for (std::size_t place = 0; place < frame_.classes.size(); ++place) {
      rank_[frame_.classes[place]] = static_cast<std::uint32_t>(place);
    }
    for (Slot slot = 0; spec.is_regression() && slot < table_.n_slots(); ++slot) {
      y_.push_back(frame_.target(table_.q(slot)));
    }
  }

  [[nodiscard]] std::vector<std::uint8_t> forge(Source& source) const {
    const std::size_t n_slots = table_.n_slots();
    std::vector<Tree> trees;
    boosting::Codes codes;
    for (std::size_t t = 0; t < std::size_t{spec_.n_rounds} * frame_.n_outputs; ++t) {
      trees.push_back(read_splits(source));
      codes.emplace_back();
      for (Slot slot = 0; slot < n_slots; ++slot) {
        codes.back().push_back(trees.back().leaf_of(
            [&](std::uint32_t column) { return table_.column(column).at(slot); }));
      }
    }
    std::vector<std::vector<boosting::State>> checks(
        (spec_.n_rounds - 1) / boosting::kCheckRounds + 1,
        std::vector<boosting::State>(n_slots * frame_.n_outputs, 0));
    const boosting::ValueInput input{
        spec_, table_, {spec_.loss, frame_.n_outputs, rank_, y_}, frame_.base};
    Progress progress;
    boosting::compute_values(input, 0, codes, trees, checks, 1, progress);
    return boosting::write_trees(trees, frame_.base, spec_);
  }

 private:
  [[nodiscard]] Tree read_splits(Source& source) const {
    Tree tree;
    std::vector<bool> is_leaf;
    std::size_t n_leaves = 0;
    while (n_leaves <= tree.splits.size()) {
      const std::uint8_t choice = source.byte();
      is_leaf.push_back(choice % 4 == 0 || tree.splits.size() + 1 >= spec_.max_leaves);
      if (is_leaf.back()) {
        ++n_leaves;
        continue;
      }
      boosting::Split split;
      split.column = source.byte() % spec_.n_columns;
      const Slot slot = source.byte() % static_cast<Slot>(table_.n_slots());
      const float x = table_.column(split.column).at(slot);
      split.threshold = std::isnan(x) ? 0.0f : x;
      split.categorical = spec_.categorical(split.column);
      split.missing_left = (choice & 4) != 0;
      tree.splits.push_back(split);
    }
    static_cast<void>(boosting::link_splits(tree.splits, is_leaf, spec_.max_leaves));
    tree.leaves.resize(n_leaves);
    return tree;
  }

  const Spec& spec_;
  Table table_;
  Frame frame_;
  std::vector<std::uint32_t> rank_;
  std::vector<std::int32_t> y_;
};

}  // namespace

BoostingCase read_boosting(Bytes input) {
  const Bytes head = input.first(kBoostingHeader);
  Source source(input.subspan(kBoostingHeader));
  BoostingCase made;
  testing::Luck luck(head[6] + head[7] * 256u);
  made.spec = read_spec(head, luck);
  made.n_classes = made.spec.is_regression() ? 0 : 1 + head[2] / 16 % 5u;
  made.eager = (head[5] & 16) != 0;
  made.people = testing::random_people(luck, {.n_rows = 1 + head[1] % 16u,
                                              .n_columns = made.spec.n_columns,
                                              .n_classes = made.n_classes,
                                              .missing = (head[0] & 4) != 0,
                                              .weighted = (head[0] & 8) != 0,
                                              .text = (head[0] & 32) != 0});
  if (made.spec.loss == boosting::Loss::poisson) {
    for (double& y : made.people.y) {
      y = std::fabs(y);
    }
  }
  if ((head[0] & 64) != 0) {
    read_rows(source, made.people);
  }
  if ((head[0] & 128) != 0) {
    boosting::require_batch(made.spec, made.people.batch(),
                            {made.n_classes, testing::counting(made.n_classes)},
                            made.people.ids());
    made.trees = BoostingForger(made.spec, made.n_classes, made.people).forge(source);
  } else {
    made.trees.assign(source.rest().begin(), source.rest().end());
  }
  return made;
}

}  // namespace letheon::fuzz
