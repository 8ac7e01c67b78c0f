// The arrays inside a block: private to the block's files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "letheon/forest/block.hpp"
#include "letheon/forest/vector.hpp"

namespace letheon::forest {

[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

// Hands out consecutive arrays of one piece of memory.
class Carver {
 public:
  explicit Carver(std::byte* place) noexcept : place_(place) {}

  template <typename T>
  T* take(std::size_t n) noexcept {
    T* const array = reinterpret_cast<T*>(place_);
    place_ += n * sizeof(T);
    return array;
  }

 private:
  std::byte* place_;
};

// Attributes of two values: what has the lower value lies left, or for categories the one of lower
// priority. Both splits by category are the same, and the first of equals wins.
template <typename Count>
class Block::Pairs {
 public:
  LETHEON_INLINE explicit Pairs(const Block& block) noexcept
      : n_(block.header().n_pairs),
        stride_(padded(n_)),
        moments_(block.header().layout == Layout::moments) {
    Carver carver(block.base_ + aligned(sizeof(Header)));
    sums_ = carver.take<std::int64_t>(moments_ ? n_ : 0);
    counts_ = carver.take<Count>((moments_ ? 1 : block.header().n_lanes) * stride_);
    low_ = carver.take<float>(stride_);
    attributes_ = carver.take<std::uint32_t>(stride_);
    ranks_ = carver.take<std::uint32_t>(n_);
    high_ = carver.take<float>(n_);
  }

  static std::size_t n_bytes(std::size_t n, std::size_t n_lanes, bool moments) noexcept {
    return aligned(n * ((moments ? sizeof(std::int64_t) : 0) + sizeof(float) +
                        sizeof(std::uint32_t)) +
                   padded(n) * (sizeof(float) + sizeof(std::uint32_t) +
                                (moments ? 1 : n_lanes) * sizeof(Count)));
  }

  [[nodiscard]] std::size_t size() const noexcept { return n_; }
  [[nodiscard]] std::uint32_t attribute(std::size_t i) const noexcept { return attributes_[i]; }
  [[nodiscard]] bool has(std::uint32_t attribute) const noexcept {
    return std::find(attributes_, attributes_ + n_, attribute) != attributes_ + n_;
  }
  // False if one has no number any more.
  [[nodiscard]] bool renumber(std::span<const std::uint32_t> numbers) noexcept {
    bool all = true;
    for (std::size_t i = 0; i < n_; ++i) {
      attributes_[i] = numbers[attributes_[i]];
      all = all && attributes_[i] != kNoColumn;
    }
    return all;
  }
  [[nodiscard]] std::uint32_t rank(std::size_t i) const noexcept { return ranks_[i]; }
  [[nodiscard]] float threshold(std::size_t i) const noexcept { return low_[i]; }
  [[nodiscard]] const Count* counts(std::size_t lane) const noexcept {
    return counts_ + lane * stride_;
  }

  void set(std::size_t i, const Draft& draft, std::uint32_t rank) noexcept {
    const Draft::List& list = draft.lists[rank];
    const bool first_is_low =
        list.is_category || draft.values[list.first] < draft.values[list.first + 1];
    const std::size_t low = list.first + (first_is_low ? 0 : 1);
    const std::int64_t* lanes = draft.left.data() + low * draft.n_lanes;
    low_[i] = draft.values[low];
    high_[i] = draft.values[list.first + (first_is_low ? 1 : 0)];
    attributes_[i] = list.attribute;
    ranks_[i] = rank;
    for (std::size_t lane = 0; lane < (moments_ ? 1 : draft.n_lanes); ++lane) {
      counts_[lane * stride_ + i] = static_cast<Count>(lanes[lane]);
    }
    if (moments_) {
      sums_[i] = lanes[1];
    }
  }

  LETHEON_INLINE void withdraw(const RowView& row, std::int32_t weight) const noexcept {
    Count* const counts = counts_ + (moments_ ? 0 : row.label) * stride_;
    for (std::size_t i = 0; i < n_; i += kLanes) {
      typename CountVector<Count>::Type left;
      withdraw_eight(low_ + i, attributes_ + i, row.x, weight, counts + i, left);
    }
    for (std::size_t i = 0; moments_ && i < n_; ++i) {
      sums_[i] -= row.x[attributes_[i]] == low_[i] ? weight * row.q : 0;
    }
  }

  // The same for a row of two classes, counting rivals on the way.
  LETHEON_INLINE void withdraw(const RowView& row, GiniRivals& rivals) const noexcept {
    Count* const same = counts_ + row.label * stride_;
    const Count* const other = counts_ + (1 - row.label) * stride_;
    for (std::size_t i = 0; i < n_; i += kLanes) {
      typename CountVector<Count>::Type left;
      typename CountVector<Count>::Type left_other;
      withdraw_eight(low_ + i, attributes_ + i, row.x, static_cast<std::int32_t>(row.weight),
                     same + i, left);
      load(other + i, left_other);
      rivals.count(left, left_other, static_cast<std::int32_t>(n_ - i));
    }
  }

  void clear_padding() noexcept {
    std::fill(low_ + n_, low_ + stride_, std::numeric_limits<float>::quiet_NaN());
  }

  // False if the row brings a third value, or none.
  [[nodiscard]] bool admit(const RowView& row) const noexcept {
    for (std::size_t i = 0; i < n_; ++i) {
      const float x = row.x[attributes_[i]];
      if (x != low_[i] && x != high_[i]) {
        return false;
      }
    }
    withdraw(row, -static_cast<std::int32_t>(row.weight));
    return true;
  }

  void lanes_left_of(std::size_t i, std::span<std::int64_t> lanes) const noexcept {
    if (moments_) {
      lanes[0] = counts_[i];
      lanes[1] = sums_[i];
      return;
    }
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = counts_[lane * stride_ + i];
    }
  }

 private:
  std::size_t n_;
  std::size_t stride_;
  bool moments_;
  std::int64_t* sums_;
  float* low_;
  float* high_;
  std::uint32_t* attributes_;
  std::uint32_t* ranks_;
  Count* counts_;
};

// The candidates of one attribute, by ascending priority.
template <typename Count>
class Block::List {
 public:
  LETHEON_INLINE List(const Block& block, Entry& entry) noexcept
      : entry_(entry),
        n_lanes_(block.header().n_lanes),
        moments_(block.header().layout == Layout::moments) {
    Carver carver(block.base_ + entry.offset);
    missing_ = carver.take<std::int64_t>(entry.keeps_missing ? n_lanes_ : 0);
    sums_ = carver.take<std::int64_t>(moments_ ? entry.capacity : 0);
    values_ = carver.take<float>(entry.capacity);
    copies_ = carver.take<Count>(entry.capacity);
    counts_ = carver.take<Count>(0);
  }

  static std::size_t n_bytes(std::size_t capacity, std::size_t n_lanes, bool moments,
                             bool keeps_missing) noexcept {
    const std::size_t counts = moments ? 1 : n_lanes;
    return aligned((keeps_missing ? n_lanes * sizeof(std::int64_t) : 0) +
                   (moments ? capacity * sizeof(std::int64_t) : 0) + capacity * sizeof(float) +
                   capacity * sizeof(Count) * (1 + counts));
  }

  [[nodiscard]] std::size_t size() const noexcept { return entry_.size; }
  [[nodiscard]] bool truncated() const noexcept { return entry_.truncated != 0; }
  [[nodiscard]] const float* values() const noexcept { return values_; }
  // Weights left of each candidate: of one class, or of all rows for a regression target.
  [[nodiscard]] const Count* counts(std::size_t lane) const noexcept {
    return counts_ + lane * entry_.capacity;
  }
  [[nodiscard]] bool keeps_missing() const noexcept { return entry_.keeps_missing != 0; }
  [[nodiscard]] const std::int64_t* missing() const noexcept { return missing_; }
  [[nodiscard]] std::int64_t missing_weight() const noexcept {
    if (!keeps_missing()) {
      return 0;
    }
    return moments_ ? missing_[0] : class_weight({missing_, n_lanes_});
  }

  void set(const Draft& draft, std::size_t rank) noexcept {
    const std::size_t first = draft.lists[rank].first;
    std::copy_n(draft.values.data() + first, size(), values_);
    clear_padding();
    for (std::size_t j = 0; j < size(); ++j) {
      const std::int64_t* lanes = draft.left.data() + (first + j) * draft.n_lanes;
      copies_[j] = static_cast<Count>(draft.copies[first + j]);
      for (std::size_t lane = 0; lane < (moments_ ? 1 : n_lanes_); ++lane) {
        counts_[lane * entry_.capacity + j] = static_cast<Count>(lanes[lane]);
      }
      if (moments_) {
        sums_[j] = lanes[1];
      }
    }
    if (keeps_missing()) {
      std::copy_n(draft.missing.data() + rank * n_lanes_, n_lanes_, missing_);
    }
  }

  // A row leaves (negative weight: comes).
  LETHEON_INLINE Change change(const RowView& row, std::int32_t weight) const noexcept {
    const float x = row.x[entry_.attribute];
    if (std::isnan(x)) {
      change_missing(row, weight);
      return {false, false};
    }
    const bool is_category = entry_.is_category != 0;
    if (moments_) {
      for (std::size_t j = 0; j < size(); ++j) {
        const bool is_left = is_category ? x == values_[j] : x <= values_[j];
        sums_[j] -= is_left ? weight * row.q : 0;
      }
    }
    Count* const counts = counts_ + (moments_ ? 0 : row.label) * entry_.capacity;
    return is_category ? withdraw_value<true>(values_, size(), x, weight, counts, copies_)
                       : withdraw_value<false>(values_, size(), x, weight, counts, copies_);
  }

  // A row of two classes leaves; rivals are counted on the way.
  LETHEON_INLINE Change withdraw(const RowView& row, GiniRivals& rivals) const noexcept {
    return entry_.is_category != 0 ? withdraw_as<true>(row, rivals)
                                   : withdraw_as<false>(row, rivals);
  }

  template <bool kCategory>
  LETHEON_INLINE Change withdraw_as(const RowView& row, GiniRivals& rivals) const noexcept {
    using Counts = typename CountVector<Count>::Type;
    Withdrawal<Count, kCategory> withdrawal{row.x[entry_.attribute], static_cast<std::int32_t>(row.weight)};
    Count* const same = counts_ + row.label * entry_.capacity;
    const Count* const other = counts_ + (1 - row.label) * entry_.capacity;
    const auto n_used = static_cast<std::int32_t>(entry_.n_used);
    for (std::size_t j = 0; j < size(); j += kLanes) {
      Counts left;
      withdrawal.apply(values_ + j, same + j, copies_ + j, left);
      const std::int32_t n = n_used - static_cast<std::int32_t>(j);
      if (n > 0) {
        Counts left_other;
        load(other + j, left_other);
        rivals.count(left, left_other, n);
      }
    }
    return withdrawal.result();
  }

  // Removes the values that no remaining row has.
  void drop_dead() noexcept {
    std::uint32_t kept = 0;
    for (std::uint32_t j = 0; j < entry_.size; ++j) {
      if (copies_[j] != 0) {
        move(j, kept++);
      }
    }
    entry_.size = kept;
    entry_.n_one_sided = kUnknown;
    clear_padding();
  }

  void lanes_left_of(std::size_t j, std::span<std::int64_t> lanes) const noexcept {
    if (moments_) {
      lanes[0] = counts_[j];
      lanes[1] = sums_[j];
      return;
    }
    for (std::size_t lane = 0; lane < n_lanes_; ++lane) {
      lanes[lane] = counts(lane)[j];
    }
  }

 private:
  void change_missing(const RowView& row, std::int32_t weight) const noexcept {
    if (moments_) {
      missing_[0] -= weight;
      missing_[1] -= weight * row.q;
    } else {
      missing_[row.label] -= weight;
    }
  }

  // Nothing is below or equal to NaN: a walk over whole vectors leaves the padding alone. What
  // stood there is wiped with it.
  void clear_padding() noexcept {
    const std::size_t begin = entry_.size;
    const std::size_t n = entry_.capacity - begin;
    std::fill_n(values_ + begin, n, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(copies_ + begin, n, Count{0});
    for (std::size_t lane = 0; lane < (moments_ ? 1 : n_lanes_); ++lane) {
      std::fill_n(counts_ + lane * entry_.capacity + begin, n, Count{0});
    }
    std::fill_n(sums_ + begin, moments_ ? n : 0, 0);
  }

  void move(std::size_t from, std::size_t to) noexcept {
    if (from == to) {
      return;
    }
    values_[to] = values_[from];
    copies_[to] = copies_[from];
    for (std::size_t lane = 0; lane < (moments_ ? 1 : n_lanes_); ++lane) {
      counts_[lane * entry_.capacity + to] = counts_[lane * entry_.capacity + from];
    }
    if (moments_) {
      sums_[to] = sums_[from];
    }
  }

  Entry& entry_;
  std::size_t n_lanes_;
  bool moments_;
  std::int64_t* missing_;
  std::int64_t* sums_;
  float* values_;
  Count* copies_;
  Count* counts_;
};

}  // namespace letheon::forest
