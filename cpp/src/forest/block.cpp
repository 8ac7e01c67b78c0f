#include "letheon/forest/block.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "letheon/forest/keys.hpp"
#include "letheon/forest/vector.hpp"

namespace letheon::forest {

namespace {

constexpr std::int64_t kNarrowLimit = std::numeric_limits<std::uint16_t>::max();
constexpr std::int64_t kExactSquares = std::int64_t{1} << 26;  // squares below are exact doubles

constexpr std::int64_t kExactFloats = std::int64_t{1} << 24;   // counts below are exact floats

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

bool is_pair(const Draft::List& list) noexcept {
  return list.size == 2 && !list.truncated && !list.has_missing;
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

}  // namespace

// Attributes of two values: what has the lower value lies left.
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
  [[nodiscard]] std::uint32_t rank(std::size_t i) const noexcept { return ranks_[i]; }
  [[nodiscard]] float threshold(std::size_t i) const noexcept { return low_[i]; }
  [[nodiscard]] const Count* counts(std::size_t lane) const noexcept {
    return counts_ + lane * stride_;
  }

  void set(std::size_t i, const Draft& draft, std::uint32_t rank) noexcept {
    const Draft::List& list = draft.lists[rank];
    const bool first_is_low = draft.values[list.first] < draft.values[list.first + 1];
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
      sums_[i] -= row.x[attributes_[i]] <= low_[i] ? weight * row.q : 0;
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
    if (moments_) {
      for (std::size_t j = 0; j < size(); ++j) {
        sums_[j] -= x <= values_[j] ? weight * row.q : 0;
      }
    }
    Count* const counts = counts_ + (moments_ ? 0 : row.label) * entry_.capacity;
    return withdraw_value(values_, size(), x, weight, counts, copies_);
  }

  // A row of two classes leaves; rivals are counted on the way.
  LETHEON_INLINE Change withdraw(const RowView& row, GiniRivals& rivals) const noexcept {
    using Counts = typename CountVector<Count>::Type;
    Withdrawal<Count> withdrawal{row.x[entry_.attribute], static_cast<std::int32_t>(row.weight)};
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

  // Takes out the values that nobody has any more.
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

  // Nothing is below or equal to NaN: a walk over whole vectors leaves the padding alone.
  void clear_padding() noexcept {
    std::fill(values_ + entry_.size, values_ + entry_.capacity,
              std::numeric_limits<float>::quiet_NaN());
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
             static_cast<std::uint8_t>(list.has_missing)};
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
bool Block::admit_as(const RowView& row, std::uint64_t key) noexcept {
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
    const std::uint64_t threshold_key = draw(key, Use::threshold, entry.attribute);
    if (priority(threshold_key, x) < priority(threshold_key, list.values()[list.size() - 1])) {
      return false;
    }
  }
  return true;
}

bool Block::admit(const RowView& row, std::uint64_t key, std::int64_t weight) noexcept {
  if (header().layout == Layout::narrow) {
    return weight <= kNarrowLimit && admit_as<std::uint16_t>(row, key);
  }
  return admit_as<std::uint32_t>(row, key);
}

namespace {

LETHEON_VECTOR BestGini best_of(const std::uint16_t* l0, const std::uint16_t* l1, std::size_t n,
                                double total0, double total1, double* score) noexcept {
  return best_gini(l0, l1, n, total0, total1, score);
}

LETHEON_VECTOR BestGini best_of(const std::uint32_t* l0, const std::uint32_t* l1, std::size_t n,
                                double total0, double total1, double* score) noexcept {
  return best_gini(l0, l1, n, total0, total1, score);
}

}  // namespace

// Goes through all candidates and keeps the best.
template <typename Count, typename Rule>
class Block::Decision {
 public:
  Decision(Block& block, Lanes totals, const Spec& spec) noexcept
      : block_(block), totals_(totals), spec_(spec), least_(spec.min_samples_leaf) {
    n_ = kRegression ? totals[0] : class_weight(totals);
    if (2 * totals.size() > few_.size()) {
      many_.resize(2 * totals.size());
    }
    std::int64_t* const lanes = many_.empty() ? few_.data() : many_.data();
    left_ = {lanes, totals.size()};
    right_ = {lanes + totals.size(), totals.size()};
  }

  [[nodiscard]] Verdict verdict() noexcept {
    if (!consider_pairs()) {
      return {.kind = Verdict::Kind::rescan};
    }
    for (Entry& entry : block_.entries()) {
      if (!consider_list(entry)) {
        return {.kind = Verdict::Kind::rescan};
      }
    }
    return best_;
  }

 private:
  static constexpr bool kRegression = std::is_same_v<Rule, SquaredError>;
  static constexpr bool kGini = std::is_same_v<Rule, Gini>;
  static constexpr std::size_t kPiece = 64;

  [[nodiscard]] bool is_fast() const noexcept {
    return kGini && totals_.size() == 2 && n_ < kExactSquares && least_ == 1;
  }

  // The first of equals wins: ranks are places among the attributes, and the candidates of one
  // attribute come in their order.
  void offer(typename Rule::Score score, std::uint32_t rank, const Verdict& split) noexcept {
    const bool none = best_.kind != Verdict::Kind::split;
    if (none || score > score_ || (score == score_ && rank < rank_)) {
      best_ = split;
      score_ = score;
      rank_ = rank;
    }
  }

  [[nodiscard]] bool is_eligible(std::int64_t n_left) const noexcept {
    return n_left >= least_ && n_ - n_left >= least_ && n_left < n_;
  }

  // Offers the split with the lanes in `left_`.
  void offer_left(std::int64_t n_left, std::uint32_t rank, const Verdict& split) noexcept {
    if (!is_eligible(n_left)) {
      return;
    }
    for (std::size_t lane = 0; lane < totals_.size(); ++lane) {
      right_[lane] = totals_[lane] - left_[lane];
    }
    offer(Rule::of(left_, right_, n_left, n_ - n_left), rank, split);
  }

  [[nodiscard]] std::int64_t weight_left() const noexcept {
    return kRegression ? left_[0] : class_weight(left_);
  }

  // False: an attribute is constant by now.
  [[nodiscard]] bool consider_pairs() noexcept {
    const Pairs<Count> pairs(block_);
    if constexpr (kGini) {
      if (is_fast()) {
        return consider_pairs_fast(pairs);
      }
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs.lanes_left_of(i, left_);
      const std::int64_t n_left = weight_left();
      if (n_left == 0 || n_left == n_) {
        return false;
      }
      offer_left(n_left, pairs.rank(i), split(pairs.attribute(i), pairs.threshold(i)));
    }
    return true;
  }

  // With least_ = 1 every candidate with two sides is eligible, so the best score is enough.
  [[nodiscard]] bool consider_pairs_fast(const Pairs<Count>& pairs) noexcept {
    for (std::size_t i = 0; i < pairs.size(); i += kPiece) {
      const std::size_t m = std::min(pairs.size() - i, kPiece);
      const BestGini found = score(pairs.counts(0) + i, pairs.counts(1) + i, m);
      if (found.n_one_sided > 0) {
        return false;
      }
      if (best_.kind != Verdict::Kind::split || found.score > score_) {
        const std::size_t k = i + place_of(found.score);
        offer(found.score, pairs.rank(k), split(pairs.attribute(k), pairs.threshold(k)));
      }
    }
    return true;
  }

  [[nodiscard]] BestGini score(const Count* first, const Count* second, std::size_t m) noexcept {
    return best_of(first, second, m, static_cast<double>(totals_[0]),
                   static_cast<double>(totals_[1]), scores_.data());
  }

  // The first candidate of this score.
  [[nodiscard]] std::size_t place_of(double wanted) const noexcept {
    return static_cast<std::size_t>(std::ranges::find(scores_, wanted) - scores_.begin());
  }

  // False: constant by now, or too few candidates are left on the list.
  [[nodiscard]] bool consider_list(Entry& entry) noexcept {
    const List<Count> list(block_, entry);
    const std::int64_t n_missing = list.missing_weight();
    if (list.size() + (n_missing > 0 ? 1 : 0) < 2) {
      return false;
    }
    std::size_t n_valid = 0;
    if constexpr (kGini) {
      n_valid = is_fast() && n_missing == 0 ? consider_fast(list, entry)
                                            : consider(list, entry, n_missing);
    } else {
      n_valid = consider(list, entry, n_missing);
    }
    return n_valid >= spec_.n_thresholds || !list.truncated();
  }

  // Both return the number of valid candidates considered, at most n_thresholds. The greatest
  // value is none, unless rows without a value can go right of it.
  [[nodiscard]] std::size_t consider_fast(const List<Count>& list, Entry& entry) noexcept {
    std::size_t n_valid = 0;
    std::size_t j = 0;
    while (j < list.size() && n_valid < spec_.n_thresholds) {
      const std::size_t wanted = std::size_t{spec_.n_thresholds} - n_valid;
      const std::size_t m = std::min({list.size() - j, kPiece, wanted});
      const BestGini found = score(list.counts(0) + j, list.counts(1) + j, m);
      n_valid += m - found.n_one_sided;
      const bool none = best_.kind != Verdict::Kind::split;
      if (found.score > 0.0 && (none || found.score >= score_)) {
        offer(found.score, entry.rank,
              split(entry.attribute, list.values()[j + place_of(found.score)]));
      }
      j += m;
    }
    entry.n_used = static_cast<std::uint32_t>(j);
    entry.n_one_sided = static_cast<std::uint8_t>(j - n_valid);
    return n_valid;
  }

  [[nodiscard]] std::size_t consider(const List<Count>& list, const Entry& entry,
                                     std::int64_t n_missing) noexcept {
    std::size_t n_valid = 0;
    for (std::size_t j = 0; j < list.size() && n_valid < spec_.n_thresholds; ++j) {
      list.lanes_left_of(j, left_);
      const std::int64_t n_left = weight_left();
      if (n_missing == 0 && n_left == n_) {
        continue;
      }
      ++n_valid;
      Verdict candidate = split(entry.attribute, list.values()[j]);
      candidate.saw_missing = n_missing > 0;
      offer_left(n_left, entry.rank, candidate);
      if (n_missing > 0) {
        for (std::size_t lane = 0; lane < totals_.size(); ++lane) {
          left_[lane] += list.missing()[lane];
        }
        candidate.missing_left = true;
        offer_left(n_left + n_missing, entry.rank, candidate);
      }
    }
    return n_valid;
  }

  [[nodiscard]] static Verdict split(std::uint32_t attribute, float threshold) noexcept {
    return {Verdict::Kind::split, attribute, threshold, false, false};
  }

  Block& block_;
  Lanes totals_;
  const Spec& spec_;
  std::int64_t n_;
  std::int64_t least_;
  Verdict best_;
  typename Rule::Score score_{};
  std::uint32_t rank_ = 0;
  std::array<double, kPiece> scores_;
  // Lanes of the two sides: on the stack unless there are many classes.
  std::array<std::int64_t, 32> few_;
  std::vector<std::int64_t> many_;
  std::span<std::int64_t> left_;
  std::span<std::int64_t> right_;
};

Verdict Block::decide(Lanes totals, const Spec& spec) noexcept {
  const bool narrow = header().layout == Layout::narrow;
  switch (spec.criterion) {
    case Criterion::gini:
      return narrow ? Decision<std::uint16_t, Gini>(*this, totals, spec).verdict()
                    : Decision<std::uint32_t, Gini>(*this, totals, spec).verdict();
    case Criterion::entropy:
      return narrow ? Decision<std::uint16_t, Entropy>(*this, totals, spec).verdict()
                    : Decision<std::uint32_t, Entropy>(*this, totals, spec).verdict();
    default:
      return Decision<std::uint32_t, SquaredError>(*this, totals, spec).verdict();
  }
}

}  // namespace letheon::forest
