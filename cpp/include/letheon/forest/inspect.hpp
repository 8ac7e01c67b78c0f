// What people look at: trees in preorder, rows in canonical order, importances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/forest/id_table.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/forest/table.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

struct TreeView {
  std::vector<std::uint8_t> kind;  // 0 leaf, 1 greedy, 2 random
  std::vector<std::int64_t> attribute, left, right;  // -1: none
  std::vector<float> threshold;                      // NaN: none
  std::vector<std::uint8_t> missing_left;
  std::vector<std::int64_t> n_rows, weight;
  std::size_t width = 0;
  std::vector<double> values;  // class weights by code, or the mean of the target
};

// The rows in canonical order: by (id, bits of the row, target, weight).
struct RowsView {
  std::vector<float> X;
  std::vector<std::uint32_t> labels;
  std::vector<double> y;
  std::vector<std::uint32_t> weights;
  bool is_text = false;
  std::vector<std::int64_t> ints;
  std::vector<std::uint8_t> blob;
  std::vector<std::int64_t> offsets;
};

[[nodiscard]] TreeView view_tree(const Tree& tree, int exponent);

// `rank[code]` is the place of a class among the sorted labels; empty: as the codes.
[[nodiscard]] RowsView view_rows(const Table& table, const IdTable& ids,
                                 std::span<const std::uint32_t> rank);

// The ids alone, sorted.
[[nodiscard]] RowsView view_ids(const Table& table, const IdTable& ids);

// Mean over the trees of each attribute's share of the decrease in impurity; from the sums.
[[nodiscard]] std::vector<double> mean_importances(std::span<const Tree> trees, const Spec& spec);

}  // namespace letheon::forest
