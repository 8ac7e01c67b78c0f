#include "letheon/common/row_views.hpp"

#include <algorithm>
#include <bit>

namespace letheon {

namespace {

// Order of rows that does not depend on how they came to be here.
class RowOrder {
 public:
  RowOrder(const Table& table, const IdTable& ids, std::span<const std::uint32_t> rank) noexcept
      : table_(table), ids_(ids), rank_(rank) {}

  bool operator()(Slot a, Slot b) const noexcept {
    if (const int order = ids_.compare(a, b); order != 0) {
      return order < 0;
    }
    for (std::size_t j = 0; j < table_.n_columns(); ++j) {
      const auto left = std::bit_cast<std::uint32_t>(table_.column(j).at(a));
      const auto right = std::bit_cast<std::uint32_t>(table_.column(j).at(b));
      if (left != right) {
        return left < right;
      }
    }
    if (target(a) != target(b)) {
      return target(a) < target(b);
    }
    return table_.weight(a) < table_.weight(b);
  }

 private:
  [[nodiscard]] std::uint64_t target(Slot slot) const noexcept {
    if (table_.is_regression()) {
      return std::bit_cast<std::uint64_t>(table_.y(slot));
    }
    const std::uint32_t code = table_.label(slot);
    return rank_.empty() ? code : rank_[code];
  }

  const Table& table_;
  const IdTable& ids_;
  std::span<const std::uint32_t> rank_;
};

void copy_ids(const IdTable& ids, std::span<const Slot> slots, RowsView& view) {
  view.is_text = ids.is_text();
  if (!view.is_text) {
    for (const Slot slot : slots) {
      view.ints.push_back(ids.int_at(slot));
    }
    return;
  }
  view.offsets.push_back(0);
  for (const Slot slot : slots) {
    const std::string& text = ids.text_at(slot);
    view.blob.insert(view.blob.end(), text.begin(), text.end());
    view.offsets.push_back(static_cast<std::int64_t>(view.blob.size()));
  }
}

}  // namespace

std::vector<Slot> held_slots(const Table& table) {
  std::vector<Slot> slots;
  for (Slot slot = 0; slot < table.n_slots(); ++slot) {
    if (table.is_alive(slot)) {
      slots.push_back(slot);
    }
  }
  return slots;
}

RowsView view_ids(const Table& table, const IdTable& ids) {
  std::vector<Slot> slots = held_slots(table);
  std::ranges::stable_sort(slots, [&](Slot a, Slot b) { return ids.compare(a, b) < 0; });
  RowsView view;
  copy_ids(ids, slots, view);
  return view;
}

RowsView view_rows(const Table& table, const IdTable& ids, std::span<const std::uint32_t> rank) {
  std::vector<Slot> slots = held_slots(table);
  std::ranges::stable_sort(slots, RowOrder(table, ids, rank));
  RowsView view;
  view.X.resize(slots.size() * table.n_columns());
  for (std::size_t j = 0; j < table.n_columns(); ++j) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      view.X[i * table.n_columns() + j] = table.column(j).at(slots[i]);
    }
  }
  for (const Slot slot : slots) {
    view.weights.push_back(table.weight(slot));
    if (table.is_regression()) {
      view.y.push_back(table.y(slot));
    } else {
      const std::uint32_t code = table.label(slot);
      view.labels.push_back(rank.empty() ? code : rank[code]);
    }
  }
  copy_ids(ids, slots, view);
  return view;
}

}  // namespace letheon
