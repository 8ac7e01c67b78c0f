// Leaves of blocks of rows against a walk down the tree, for every kind of column.
#include <algorithm>
#include <numeric>
#include <vector>

#include "checks.hpp"
#include "letheon/boosting/coder.hpp"
#include "people.hpp"

namespace {

namespace boosting = letheon::boosting;
using boosting::Coder;
using boosting::kBlockRows;
using boosting::Split;
using boosting::Tree;
using letheon::Slot;
using letheon::Table;
using letheon::testing::check;
using letheon::testing::kMissing;
using letheon::testing::Luck;
using letheon::testing::People;

constexpr std::size_t kColumns = 9;

// Column j has one value, two, two and missing ones, few, few and missing ones, or many.
People make_rows(Luck& luck, std::size_t n) {
  constexpr std::size_t kValues[kColumns] = {1, 2, 2, 2, 2, 5, 40, 200, 5000};
  People people{.n_columns = kColumns};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      const bool missing = (j == 4 || j == 6 || j == 8) && luck.one_in(6);
      people.X.push_back(missing ? kMissing : static_cast<float>(luck.below(kValues[j])) - 1.0f);
    }
    people.labels.push_back(luck.below(2));
    people.owners.push_back(luck.next());
  }
  return people;
}

bool is_categorical(std::size_t column) { return column % 3 == 0; }

Tree make_tree(Luck& luck, const People& people, std::size_t n_leaves) {
  std::vector<bool> kinds{true};  // in preorder; true: a leaf
  for (std::size_t n = 1; n < n_leaves; ++n) {
    std::size_t number = luck.below(n);  // of the leaf that becomes a split
    const auto at = std::ranges::find_if(kinds, [&](bool is_leaf) {
      return is_leaf && number-- == 0;
    });
    const auto place = at - kinds.begin();
    kinds[static_cast<std::size_t>(place)] = false;
    kinds.insert(kinds.begin() + place + 1, 2, true);
  }
  Tree tree;
  for (std::size_t n = 1; n < n_leaves; ++n) {
    const std::size_t column = luck.below(kColumns);
    float threshold = people.X[luck.below(people.n_rows()) * kColumns + column];
    threshold = threshold == threshold ? threshold : 0.5f;
    tree.splits.push_back({.column = static_cast<std::uint32_t>(column),
                           .threshold = luck.one_in(10) ? threshold + 0.25f : threshold,
                           .categorical = is_categorical(column),
                           .missing_left = luck.one_in(2)});
  }
  check(link_splits(tree.splits, kinds, boosting::kMostLeaves), "a tree");
  return tree;
}

void compare(Luck& luck, std::size_t n_rows) {
  const People people = make_rows(luck, n_rows);
  Table table(kColumns, false, std::nullopt);
  static_cast<void>(table.append(people.batch(), 2));
  check(n_rows < 10 || (table.column(1).is_packed() && !table.column(4).is_packed()),
        "columns of two values are packed");
  std::vector<Slot> gone;  // so that tables of values have holes
  for (Slot slot = 0; slot < n_rows / 2; ++slot) {
    if (luck.one_in(3)) {
      gone.push_back(slot);
    }
  }
  table.erase(gone);
  std::vector<Tree> trees;
  for (const std::size_t n_leaves : {1u, 2u, 3u, 17u, 48u, 63u, 64u}) {
    trees.push_back(make_tree(luck, people, n_leaves));
  }
  Coder coder(trees);
  coder.read_codes(table);
  Coder::Scratch of_table;
  Coder::Scratch of_matrix;
  const auto matrix = people.matrix();
  std::uint8_t leaves[kBlockRows];
  for (std::size_t begin = 0; begin < n_rows; begin += kBlockRows) {
    const std::size_t n = std::min(kBlockRows, n_rows - begin);
    coder.read(table, begin, n, of_table);
    coder.read(matrix, begin, n, of_matrix);
    for (std::size_t t = 0; t < trees.size(); ++t) {
      const auto value_of = [&](std::size_t i) {
        return [&, i](std::uint32_t column) { return people.X[(begin + i) * kColumns + column]; };
      };
      bool table_equal = true;
      bool matrix_equal = true;
      coder.find_leaves(t, of_table, leaves);
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_held = table.is_alive(static_cast<Slot>(begin + i));
        table_equal = table_equal && (!is_held || leaves[i] == trees[t].leaf_of(value_of(i)));
      }
      coder.find_leaves(t, of_matrix, leaves);
      for (std::size_t i = 0; i < n; ++i) {
        matrix_equal = matrix_equal && leaves[i] == trees[t].leaf_of(value_of(i));
      }
      check(table_equal, "leaves of the rows of a table");
      check(matrix_equal, "leaves of the rows of a matrix");
    }
  }
}

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Luck luck(seed);
    for (const std::size_t n_rows : {1u, 63u, 64u, 65u, 511u, 512u, 513u, 1400u}) {
      compare(luck, n_rows);
    }
  }
  return letheon::testing::result();
}
