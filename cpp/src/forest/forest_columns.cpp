// Columns that leave and come while the trees stay the same.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "letheon/forest/forest.hpp"

namespace letheon::forest {

namespace {

void require(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

bool Forest::is_constant(std::uint32_t column, std::span<const Slot> without) const {
  const auto lock = reading();
  const Table& table = content_.table;
  require(column < table.n_columns(), "there is no column of that number");
  std::vector<std::uint8_t> doomed(table.n_slots(), 0);
  for (const Slot slot : without) {
    require(slot < doomed.size(), "slots must be held");
    doomed[slot] = 1;
  }
  return table.is_constant(column, doomed);
}

std::vector<std::uint32_t> Forest::new_numbers(std::span<const std::int64_t> layout,
                                               const Spec& spec) const {
  std::vector<std::uint32_t> numbers(spec_.n_columns, kNoColumn);
  for (std::uint32_t j = 0; j < layout.size(); ++j) {
    if (layout[j] < 0) {
      continue;
    }
    const auto old = static_cast<std::uint64_t>(layout[j]);
    require(old < numbers.size() && numbers[old] == kNoColumn,
            "the layout must name columns that are there, each once");
    require(spec.column_key(j) == spec_.column_key(static_cast<std::uint32_t>(old)),
            "a column that stays must keep its key");
    numbers[old] = j;
  }
  return numbers;
}

void Forest::move_columns(std::span<const std::int64_t> layout,
                          std::span<const std::uint32_t> keys, std::span<const float> fills,
                          std::uint32_t max_features) {
  const auto lock = changing();
  require(layout.size() == keys.size() && layout.size() == fills.size(),
          "the layout, the keys and the fills must have one entry per column");
  require(spec_.categorical.empty(), "columns of a forest with categories cannot change");
  Spec spec = spec_;
  spec.n_columns = static_cast<std::uint32_t>(layout.size());
  spec.max_features = max_features;
  spec.column_keys.assign(keys.begin(), keys.end());
  spec.validate();
  const auto numbers = new_numbers(layout, spec);
  Table& table = content_.table;
  const std::vector<std::uint8_t> none(table.n_slots(), 0);
  std::uint32_t n_kept = 0;
  for (std::uint32_t old = 0; old < numbers.size(); ++old) {
    n_kept += numbers[old] != kNoColumn ? 1 : 0;
    require(numbers[old] != kNoColumn || table.is_constant(old, none),
            "a column that is not constant cannot be left out");
  }
  // No node has more attributes that vary than the columns that stay.
  require(max_features == spec_.max_features ||
              std::min(max_features, spec_.max_features) >= n_kept,
          "another max_features makes other trees");
  require(std::ranges::none_of(fills, [](float fill) { return std::isinf(fill); }),
          "a new column holds infinity");
  table.move_columns(layout, fills);
  // Nothing below can fail.
  for (Tree& tree : content_.trees) {
    tree.move_columns(numbers);
  }
  spec_.n_columns = spec.n_columns;
  spec_.max_features = spec.max_features;
  spec_.column_keys = std::move(spec.column_keys);
}

}  // namespace letheon::forest
