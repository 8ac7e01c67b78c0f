// The stored rows and their ids, in an order that does not depend on how they arrived.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/common/id_table.hpp"
#include "letheon/common/table.hpp"

namespace letheon {

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

// The slots of the rows that are held, ascending.
[[nodiscard]] std::vector<Slot> held_slots(const Table& table);

// `rank[code]` is the place of a class among the sorted labels; empty: as the codes.
[[nodiscard]] RowsView view_rows(const Table& table, const IdTable& ids,
                                 std::span<const std::uint32_t> rank);

// The ids alone, sorted.
[[nodiscard]] RowsView view_ids(const Table& table, const IdTable& ids);

}  // namespace letheon
