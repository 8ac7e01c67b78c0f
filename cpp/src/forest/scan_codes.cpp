// Columns of few values: counting by code, without a search.
#include <algorithm>
#include <cstdint>

#include "letheon/forest/keys.hpp"
#include "letheon/forest/scan.hpp"
#include "tally.hpp"

namespace letheon::forest {

bool Scanner::codes_vary(const Column& column) const noexcept {
  return column.read_codes([&](auto code_of) {
    const std::uint8_t first = code_of(rows_[0]);
    return std::ranges::any_of(rows_, [=](Slot slot) { return code_of(slot) != first; });
  });
}

void Scanner::tally_codes(const Column& column) {
  const std::size_t n_codes = column.table().size();
  const std::uint32_t n_lanes = table_.n_lanes();
  // Rows without a value are counted last.
  scratch_.tallies.assign((n_codes + 1) * n_lanes, 0);
  std::int64_t* tallies = scratch_.tallies.data();
  const Adder adder{labels_, q_, weights_};
  column.read_codes([&](auto code_of) {
    if (n_codes == 2 && n_lanes == 2 && labels_ != nullptr && weights_ == nullptr &&
        !column.has_missing()) {
      // The common one-hot column: two sums and no table.
      std::int64_t ones = 0;
      std::int64_t ones_labelled = 0;
      std::int64_t labelled = 0;
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        const std::uint32_t code = code_of(rows_[i]);
        const std::uint32_t label = labels_[i];
        ones += code;
        ones_labelled += code & label;
        labelled += label;
      }
      const auto n = static_cast<std::int64_t>(rows_.size());
      tallies[0] = n - ones - (labelled - ones_labelled);
      tallies[1] = labelled - ones_labelled;
      tallies[2] = ones - ones_labelled;
      tallies[3] = ones_labelled;
      return;
    }
    const Slot* const rows = rows_.data();
    tally(rows_.size(), n_lanes, n_codes + 1, adder, tallies, [=](std::size_t i) {
      return std::min<std::size_t>(code_of(rows[i]), n_codes);
    });
  });
}

bool Scanner::list_codes(const Column& column, std::uint32_t attribute, std::uint64_t key,
                         std::uint32_t keep) {
  if (!codes_vary(column)) {
    return false;
  }
  tally_codes(column);
  const std::uint32_t n_lanes = table_.n_lanes();
  const auto values = column.table();
  const bool regression = table_.is_regression();
  const auto weight_at = [&](std::size_t code) {
    const std::int64_t* lanes = scratch_.tallies.data() + code * n_lanes;
    return regression ? lanes[0] : class_weight({lanes, n_lanes});
  };
  auto& found = scratch_.found;
  found.clear();
  for (std::size_t code = 0; code < values.size(); ++code) {
    if (weight_at(code) > 0) {
      found.push_back(std::uint64_t{priority(key, values[code])} << 32 | code);
    }
  }
  const bool truncated = found.size() > keep;
  if (truncated) {
    std::ranges::nth_element(found, found.begin() + keep);
    found.resize(keep);
  }
  std::ranges::sort(found);

  // left[code] = lanes of all rows up to that code, or with that category.
  auto& left = scratch_.tallies;
  Draft& draft = scratch_.draft;
  const auto first = static_cast<std::uint32_t>(draft.values.size());
  for (const std::uint64_t entry : found) {
    draft.values.push_back(values[entry & 0xFFFFFFFFu]);
    draft.copies.push_back(weight_at(entry & 0xFFFFFFFFu));
  }
  const bool is_category = spec_.is_category(attribute);
  for (std::size_t k = n_lanes; !is_category && k < values.size() * n_lanes; ++k) {
    left[k] += left[k - n_lanes];
  }
  for (const std::uint64_t entry : found) {
    const std::int64_t* lanes = left.data() + (entry & 0xFFFFFFFFu) * n_lanes;
    draft.left.insert(draft.left.end(), lanes, lanes + n_lanes);
  }
  const std::int64_t* missing = left.data() + values.size() * n_lanes;
  const bool has_missing = weight_at(values.size()) > 0;
  draft.missing.insert(draft.missing.end(), missing, missing + n_lanes);
  draft.lists.push_back({attribute, first, static_cast<std::uint32_t>(found.size()), truncated,
                         has_missing, is_category});
  return true;
}

}  // namespace letheon::forest
