#include "letheon/forest/block.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "letheon/forest/kernels.hpp"
#include "letheon/forest/keys.hpp"

namespace letheon::forest {

namespace {

constexpr std::int64_t kNarrowLimit = std::numeric_limits<std::uint16_t>::max();
constexpr double kExactSquares = 67108864.0;  // 2^26: squares of such counts are exact doubles

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

// Where the arrays of one attribute lie. `Count` is the type of weights; the sums of a regression
// target stand apart.
template <typename Count>
class Block::List {
 public:
  List(const Block& block, Entry& entry) noexcept
      : entry_(entry),
        n_lanes_(block.header().n_lanes),
        moments_(block.header().layout == Layout::moments) {
    std::byte* place = block.base_ + entry.offset;
    missing_ = reinterpret_cast<std::int64_t*>(place);
    place += entry.keeps_missing ? n_lanes_ * sizeof(std::int64_t) : 0;
    sums_ = reinterpret_cast<std::int64_t*>(place);
    place += moments_ ? entry.capacity * sizeof(std::int64_t) : 0;
    values_ = reinterpret_cast<float*>(place);
    place += entry.capacity * sizeof(float);
    copies_ = reinterpret_cast<Count*>(place);
    counts_ = copies_ + entry.capacity;
  }

  static std::size_t n_bytes(std::size_t capacity, std::size_t n_lanes, bool moments,
                             bool keeps_missing) noexcept {
    const std::size_t counts = moments ? 1 : n_lanes;
    return aligned((keeps_missing ? n_lanes * sizeof(std::int64_t) : 0) +
                   (moments ? capacity * sizeof(std::int64_t) : 0) + capacity * sizeof(float) +
                   capacity * sizeof(Count) * (1 + counts));
  }

  [[nodiscard]] std::size_t size() const noexcept { return entry_.size; }
  [[nodiscard]] std::uint32_t attribute() const noexcept { return entry_.attribute; }
  [[nodiscard]] bool truncated() const noexcept { return entry_.truncated != 0; }
  [[nodiscard]] float* values() const noexcept { return values_; }
  [[nodiscard]] Count* copies() const noexcept { return copies_; }
  // Weights left of each candidate: of one class, or of all rows for a regression target.
  [[nodiscard]] Count* counts(std::size_t lane) const noexcept {
    return counts_ + lane * entry_.capacity;
  }
  [[nodiscard]] std::int64_t* sums() const noexcept { return sums_; }
  [[nodiscard]] std::int64_t* missing() const noexcept {
    return entry_.keeps_missing ? missing_ : nullptr;
  }

  [[nodiscard]] std::int64_t missing_weight() const noexcept {
    if (!entry_.keeps_missing) {
      return 0;
    }
    return moments_ ? missing_[0] : class_weight({missing_, n_lanes_});
  }

  // A row of this class leaves (negative weight: comes). True if its value is on the list.
  bool change(const RowView& row, std::int32_t weight) noexcept {
    const float x = row.x[entry_.attribute];
    if (std::isnan(x)) {
      change_missing(row, weight);
      return false;
    }
    if (moments_) {
      for (std::size_t j = 0; j < size(); ++j) {
        sums_[j] -= x <= values_[j] ? weight * row.q : 0;
      }
    }
    return forest::withdraw(values_, size(), x, weight, counts(moments_ ? 0 : row.label), copies_);
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
  }

  void lanes_left_of(std::size_t j, std::int64_t* lanes) const noexcept {
    if (moments_) {
      lanes[0] = counts(0)[j];
      lanes[1] = sums_[j];
      return;
    }
    for (std::size_t lane = 0; lane < n_lanes_; ++lane) {
      lanes[lane] = counts(lane)[j];
    }
  }

 private:
  void change_missing(const RowView& row, std::int32_t weight) noexcept {
    if (moments_) {
      missing_[0] -= weight;
      missing_[1] -= weight * row.q;
    } else {
      missing_[row.label] -= weight;
    }
  }

  void move(std::size_t from, std::size_t to) noexcept {
    if (from == to) {
      return;
    }
    values_[to] = values_[from];
    copies_[to] = copies_[from];
    for (std::size_t lane = 0; lane < (moments_ ? 1 : n_lanes_); ++lane) {
      counts(lane)[to] = counts(lane)[from];
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

Block::Header& Block::header() const noexcept { return *reinterpret_cast<Header*>(base_); }

std::span<Block::Entry> Block::entries() const noexcept {
  return {reinterpret_cast<Entry*>(base_ + aligned(sizeof(Header))), header().n_attributes};
}

std::size_t Block::n_bytes() const noexcept { return header().n_bytes; }

std::size_t Block::n_attributes() const noexcept { return header().n_attributes; }

std::uint32_t Block::attribute(std::size_t index) const noexcept {
  return entries()[index].attribute;
}

void Block::pack(const Draft& draft, std::int64_t weight, bool regression, Bytes8& storage) {
  const Layout layout = regression               ? Layout::moments
                        : weight <= kNarrowLimit ? Layout::narrow
                                                 : Layout::wide;
  const auto bytes_of = [&](const Draft::List& list) {
    return layout == Layout::narrow
               ? List<std::uint16_t>::n_bytes(list.size, draft.n_lanes, false, list.has_missing)
               : List<std::uint32_t>::n_bytes(list.size, draft.n_lanes, regression,
                                              list.has_missing);
  };
  const std::size_t first = aligned(sizeof(Header)) + aligned(draft.lists.size() * sizeof(Entry));
  std::size_t n_bytes = first;
  for (const Draft::List& list : draft.lists) {
    n_bytes += bytes_of(list);
  }
  storage.resize(n_bytes / 8);
  Block block(storage.data());
  block.header() = {static_cast<std::uint32_t>(n_bytes),
                    static_cast<std::uint32_t>(draft.lists.size()), draft.n_lanes, layout};
  std::size_t offset = first;
  for (std::size_t i = 0; i < draft.lists.size(); ++i) {
    const Draft::List& list = draft.lists[i];
    block.entries()[i] = {list.attribute,
                          list.size,
                          list.size,
                          static_cast<std::uint32_t>(offset),
                          static_cast<std::uint8_t>(list.truncated),
                          static_cast<std::uint8_t>(list.has_missing)};
    offset += bytes_of(list);
  }
  if (layout == Layout::narrow) {
    block.fill<std::uint16_t>(draft);
  } else {
    block.fill<std::uint32_t>(draft);
  }
}

template <typename Count>
void Block::fill(const Draft& draft) noexcept {
  const bool moments = header().layout == Layout::moments;
  for (std::size_t i = 0; i < draft.lists.size(); ++i) {
    const List<Count> list(*this, entries()[i]);
    const std::size_t first = draft.lists[i].first;
    std::copy_n(draft.values.data() + first, list.size(), list.values());
    for (std::size_t j = 0; j < list.size(); ++j) {
      const std::int64_t* lanes = draft.left.data() + (first + j) * draft.n_lanes;
      list.copies()[j] = static_cast<Count>(draft.copies[first + j]);
      for (std::size_t lane = 0; lane < (moments ? 1 : draft.n_lanes); ++lane) {
        list.counts(lane)[j] = static_cast<Count>(lanes[lane]);
      }
      if (moments) {
        list.sums()[j] = lanes[1];
      }
    }
    if (list.missing() != nullptr) {
      std::copy_n(draft.missing.data() + i * draft.n_lanes, draft.n_lanes, list.missing());
    }
  }
}

template <typename Count>
void Block::withdraw_as(const RowView& row) noexcept {
  for (Entry& entry : entries()) {
    List<Count> list(*this, entry);
    if (list.change(row, static_cast<std::int32_t>(row.weight))) {
      list.drop_dead();
    }
  }
}

void Block::withdraw(const RowView& row) noexcept {
  if (header().layout == Layout::narrow) {
    withdraw_as<std::uint16_t>(row);
  } else {
    withdraw_as<std::uint32_t>(row);
  }
}

template <typename Count>
bool Block::admit_as(const RowView& row, std::uint64_t key) noexcept {
  for (Entry& entry : entries()) {
    List<Count> list(*this, entry);
    const float x = row.x[entry.attribute];
    if (std::isnan(x) && list.missing() == nullptr) {
      return false;
    }
    const bool listed = list.change(row, -static_cast<std::int32_t>(row.weight));
    if (listed || std::isnan(x)) {
      continue;
    }
    if (!list.truncated() || list.size() == 0) {
      return false;
    }
    const std::uint64_t priorities_key = draw(key, Use::threshold, entry.attribute);
    if (priority(priorities_key, x) < priority(priorities_key, list.values()[list.size() - 1])) {
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

// Keeps the best split met so far; the first of equals wins.
template <typename Score>
struct Best {
  Verdict verdict;
  Score score{};

  void offer(Score candidate, std::uint32_t attribute, float threshold, bool saw_missing,
             bool missing_left) noexcept {
    if (verdict.kind != Verdict::Kind::split || candidate > score) {
      verdict = {Verdict::Kind::split, attribute, threshold, saw_missing, missing_left};
      score = candidate;
    }
  }
};

// Scratch for the lanes of the two sides: on the stack unless there are many classes.
class TwoSides {
 public:
  explicit TwoSides(std::size_t n_lanes) : n_(n_lanes) {
    if (2 * n_ > few_.size()) {
      many_.resize(2 * n_);
    }
  }
  [[nodiscard]] std::int64_t* left() noexcept { return many_.empty() ? few_.data() : many_.data(); }
  [[nodiscard]] std::int64_t* right() noexcept { return left() + n_; }

 private:
  std::size_t n_;
  std::array<std::int64_t, 32> few_;
  std::vector<std::int64_t> many_;
};

}  // namespace

template <typename Count, typename Rule>
Verdict Block::decide_as(Lanes totals, const Spec& spec) const noexcept {
  constexpr bool is_regression = std::is_same_v<Rule, SquaredError>;
  const std::int64_t n = is_regression ? totals[0] : class_weight(totals);
  const auto least = static_cast<std::int64_t>(spec.min_samples_leaf);
  const std::size_t n_lanes = totals.size();
  const bool fast = std::is_same_v<Rule, Gini> && n_lanes == 2 &&
                    static_cast<double>(n) < kExactSquares;
  Best<typename Rule::Score> best;
  TwoSides sides(n_lanes);
  for (Entry& entry : entries()) {
    const List<Count> list(*this, entry);
    const std::int64_t n_missing = list.missing_weight();
    if (list.size() + (n_missing > 0 ? 1 : 0) < 2) {
      return {.kind = Verdict::Kind::rescan};  // constant by now, or too little known
    }
    std::size_t n_valid = 0;
    if (fast && n_missing == 0) {
      if constexpr (std::is_same_v<Rule, Gini>) {
        constexpr std::size_t kPiece = 64;
        std::array<double, kPiece> scores;
        std::array<double, kPiece> lefts;
        const auto total = static_cast<double>(n);
        for (std::size_t j = 0; j < list.size() && n_valid < spec.n_thresholds; j += kPiece) {
          const std::size_t wanted = std::min(list.size() - j,
                                              std::size_t{spec.n_thresholds} - n_valid + 1);
          const std::size_t m = std::min(kPiece, wanted);
          gini_scores(list.counts(0) + j, list.counts(1) + j, m, static_cast<double>(totals[0]),
                      static_cast<double>(totals[1]), scores.data(), lefts.data());
          for (std::size_t i = 0; i < m && n_valid < spec.n_thresholds; ++i) {
            if (lefts[i] == total) {
              continue;  // the greatest value is no candidate
            }
            ++n_valid;
            if (lefts[i] >= static_cast<double>(least) &&
                total - lefts[i] >= static_cast<double>(least)) {
              best.offer(scores[i], entry.attribute, list.values()[j + i], false, false);
            }
          }
        }
      }
    } else {
      for (std::size_t j = 0; j < list.size() && n_valid < spec.n_thresholds; ++j) {
        list.lanes_left_of(j, sides.left());
        const std::int64_t n_left =
            is_regression ? sides.left()[0] : class_weight({sides.left(), n_lanes});
        if (n_missing == 0 && n_left == n) {
          continue;  // the greatest value is no candidate
        }
        ++n_valid;
        const auto offer = [&](std::int64_t on_left, bool missing_left) {
          if (on_left < least || n - on_left < least || on_left == n) {
            return;
          }
          for (std::size_t lane = 0; lane < n_lanes; ++lane) {
            sides.right()[lane] = totals[lane] - sides.left()[lane];
          }
          best.offer(Rule::of({sides.left(), n_lanes}, {sides.right(), n_lanes}, on_left,
                              n - on_left),
                     entry.attribute, list.values()[j], n_missing > 0, missing_left);
        };
        offer(n_left, false);
        if (n_missing > 0) {
          for (std::size_t lane = 0; lane < n_lanes; ++lane) {
            sides.left()[lane] += list.missing()[lane];
          }
          offer(n_left + n_missing, true);
        }
      }
    }
    if (n_valid < spec.n_thresholds && list.truncated()) {
      return {.kind = Verdict::Kind::rescan};
    }
  }
  return best.verdict;
}

Verdict Block::decide(Lanes totals, const Spec& spec) const noexcept {
  const bool narrow = header().layout == Layout::narrow;
  switch (spec.criterion) {
    case Criterion::gini:
      return narrow ? decide_as<std::uint16_t, Gini>(totals, spec)
                    : decide_as<std::uint32_t, Gini>(totals, spec);
    case Criterion::entropy:
      return narrow ? decide_as<std::uint16_t, Entropy>(totals, spec)
                    : decide_as<std::uint32_t, Entropy>(totals, spec);
    default:
      return decide_as<std::uint32_t, SquaredError>(totals, spec);
  }
}

}  // namespace letheon::forest
