#include "letheon/forest/block.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "letheon/forest/keys.hpp"
#include "lists.hpp"

namespace letheon::forest {

namespace {

constexpr std::int64_t kNarrowLimit = std::numeric_limits<std::uint16_t>::max();
constexpr std::int64_t kExactFloats = std::int64_t{1} << 24;  // counts below are exact floats

bool is_pair(const Draft::List& list) noexcept {
  return list.size == 2 && !list.truncated && !list.has_missing;
}

}  // namespace

std::size_t Block::n_bytes() const noexcept { return header().n_bytes; }

bool Block::has(std::uint32_t attribute) const noexcept {
  const auto is_it = [=](const Entry& entry) { return entry.attribute == attribute; };
  if (std::ranges::any_of(entries(), is_it)) {
    return true;
  }
  return header().layout == Layout::narrow ? Pairs<std::uint16_t>(*this).has(attribute)
                                           : Pairs<std::uint32_t>(*this).has(attribute);
}

void Block::pack(const Draft& draft, std::int64_t weight, bool regression, Bytes8& storage) {
  if (regression) {
    pack_as<std::uint32_t>(draft, Layout::moments, storage);
  } else if (weight <= kNarrowLimit) {
    pack_as<std::uint16_t>(draft, Layout::narrow, storage);
  } else {
    pack_as<std::uint32_t>(draft, Layout::wide, storage);
  }
}

template <typename Count>
void Block::pack_as(const Draft& draft, Layout layout, Bytes8& storage) {
  const bool moments = layout == Layout::moments;
  const auto n_pairs = static_cast<std::size_t>(std::ranges::count_if(draft.lists, is_pair));
  const std::size_t n_lists = draft.lists.size() - n_pairs;
  const std::size_t entries_at =
      aligned(sizeof(Header)) + Pairs<Count>::n_bytes(n_pairs, draft.n_lanes, moments);
  const std::size_t first = entries_at + aligned(n_lists * sizeof(Entry));
  // A vector may be read from any candidate on, also from the last one of the last list.
  std::size_t n_bytes = first + aligned(kLanes * sizeof(Count));
  for (const Draft::List& list : draft.lists) {
    if (!is_pair(list)) {
      n_bytes += List<Count>::n_bytes(padded(list.size), draft.n_lanes, moments,
                                      list.has_missing);
    }
  }
  storage.assign(n_bytes / 8, 0);
  Block block(storage.data());
  block.header() = {n_bytes,
                    static_cast<std::uint32_t>(n_pairs),
                    static_cast<std::uint32_t>(n_lists),
                    draft.n_lanes,
                    static_cast<std::uint32_t>(entries_at),
                    layout,
                    std::ranges::any_of(draft.lists, &Draft::List::has_missing)};
  Pairs<Count> pairs(block);
  pairs.clear_padding();
  std::size_t offset = first;
  std::size_t next_pair = 0;
  std::size_t next_list = 0;
  for (std::uint32_t rank = 0; rank < draft.lists.size(); ++rank) {
    const Draft::List& list = draft.lists[rank];
    if (is_pair(list)) {
      pairs.set(next_pair++, draft, rank);
      continue;
    }
    Entry& entry = block.entries()[next_list++];
    entry = {offset,
             list.attribute,
             rank,
             list.size,
             static_cast<std::uint32_t>(padded(list.size)),
             0,
             kUnknown,
             static_cast<std::uint8_t>(list.truncated),
             static_cast<std::uint8_t>(list.has_missing),
             static_cast<std::uint8_t>(list.is_category)};
    List<Count>(block, entry).set(draft, rank);
    offset += List<Count>::n_bytes(padded(list.size), draft.n_lanes, moments, list.has_missing);
  }
}

template <typename Count>
LETHEON_INLINE void Block::withdraw_as(const RowView& row) noexcept {
  const auto weight = static_cast<std::int32_t>(row.weight);
  if (header().n_pairs > 0) {
    Pairs<Count>(*this).withdraw(row, weight);
  }
  for (Entry& entry : entries()) {
    List<Count> list(*this, entry);
    if (list.change(row, weight).died) {
      list.drop_dead();
    }
  }
}

LETHEON_VECTOR void Block::withdraw_narrow(const RowView& row) noexcept {
  withdraw_as<std::uint16_t>(row);
}

LETHEON_VECTOR void Block::withdraw_wide(const RowView& row) noexcept {
  withdraw_as<std::uint32_t>(row);
}

void Block::withdraw(const RowView& row) noexcept {
  if (header().layout == Layout::narrow) {
    withdraw_narrow(row);
  } else {
    withdraw_wide(row);
  }
}

template <typename Count>
LETHEON_INLINE bool Block::confirm_as(const RowView& row, GiniRivals& rivals) noexcept {
  bool sure = true;
  std::int32_t n_one_sided = 0;
  if (header().n_pairs > 0) {
    Pairs<Count>(*this).withdraw(row, rivals);
  }
  for (Entry& entry : entries()) {
    List<Count> list(*this, entry);
    sure = sure && entry.n_one_sided != kUnknown;
    n_one_sided += entry.n_one_sided;
    if (list.withdraw(row, rivals).died) {
      list.drop_dead();
      sure = false;
    }
  }
  // As long as no value has left a list, its candidates are the same unless another value has
  // become the greatest, which shows as one more empty side.
  return sure && GiniRivals::sum(rivals.one_sided) == n_one_sided &&
         GiniRivals::sum(rivals.near) == 1;  // the split itself
}

LETHEON_VECTOR bool Block::confirm_narrow(const RowView& row, float bound,
                                          const std::int64_t* totals) noexcept {
  GiniRivals rivals{static_cast<float>(totals[row.label]),
                    static_cast<float>(totals[1 - row.label]), bound};
  return confirm_as<std::uint16_t>(row, rivals);
}

LETHEON_VECTOR bool Block::confirm_wide(const RowView& row, float bound,
                                        const std::int64_t* totals) noexcept {
  GiniRivals rivals{static_cast<float>(totals[row.label]),
                    static_cast<float>(totals[1 - row.label]), bound};
  return confirm_as<std::uint32_t>(row, rivals);
}

bool Block::withdraw_and_confirm(const RowView& row, const std::int64_t* left,
                                 const std::int64_t* totals) noexcept {
  const std::int64_t n = totals[0] + totals[1];
  const std::int64_t n_left = left[0] + left[1];
  if (n >= kExactFloats || n_left == 0 || n_left == n || header().keeps_missing) {
    withdraw(row);
    return false;
  }
  const std::int64_t right0 = totals[0] - left[0];
  const std::int64_t right1 = totals[1] - left[1];
  const double score = static_cast<double>(left[0] * left[0] + left[1] * left[1]) /
                           static_cast<double>(n_left) +
                       static_cast<double>(right0 * right0 + right1 * right1) /
                           static_cast<double>(n - n_left);
  const auto bound = static_cast<float>(score * (1.0 - kNear));
  return header().layout == Layout::narrow ? confirm_narrow(row, bound, totals)
                                           : confirm_wide(row, bound, totals);
}

template <typename Count>
bool Block::admit_as(const RowView& row, std::uint64_t key, const Spec& spec) noexcept {
  if (!Pairs<Count>(*this).admit(row)) {
    return false;
  }
  for (Entry& entry : entries()) {
    const List<Count> list(*this, entry);
    const float x = row.x[entry.attribute];
    if (std::isnan(x) && !list.keeps_missing()) {
      return false;
    }
    const bool listed = list.change(row, -static_cast<std::int32_t>(row.weight)).listed;
    if (listed || std::isnan(x)) {
      continue;
    }
    if (!list.truncated() || list.size() == 0) {
      return false;
    }
    const std::uint64_t threshold_key = draw(key, Use::threshold, spec.column_key(entry.attribute));
    if (priority(threshold_key, x) < priority(threshold_key, list.values()[list.size() - 1])) {
      return false;
    }
  }
  return true;
}

bool Block::admit(const RowView& row, std::uint64_t key, const Spec& spec,
                  std::int64_t weight) noexcept {
  if (header().layout == Layout::narrow) {
    return weight <= kNarrowLimit && admit_as<std::uint16_t>(row, key, spec);
  }
  return admit_as<std::uint32_t>(row, key, spec);
}

template <typename Count>
bool Block::renumber_as(std::span<const std::uint32_t> numbers) noexcept {
  bool all = Pairs<Count>(*this).renumber(numbers);
  for (Entry& entry : entries()) {
    entry.attribute = numbers[entry.attribute];
    all = all && entry.attribute != kNoColumn;
  }
  return all;
}

bool Block::renumber(std::span<const std::uint32_t> numbers) noexcept {
  return header().layout == Layout::narrow ? renumber_as<std::uint16_t>(numbers)
                                           : renumber_as<std::uint32_t>(numbers);
}

}  // namespace letheon::forest
