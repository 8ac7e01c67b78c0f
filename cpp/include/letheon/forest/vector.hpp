// Short loops in vectors of fixed width, to be inlined into functions marked LETHEON_VECTOR.
//
// On x86-64 such a function is compiled twice, and the processor decides at run time. The results
// do not depend on that: integers are exact, and the floating-point operations are single IEEE
// operations in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "letheon/common/clones.hpp"

namespace letheon::forest {

// Arrays of candidates are padded to a multiple of this many; the values of the padding are NaN.
inline constexpr std::size_t kLanes = 8;

[[nodiscard]] constexpr std::size_t padded(std::size_t n) noexcept {
  return (n + kLanes - 1) / kLanes * kLanes;
}

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
template <typename Count>
struct CountVector {
  typedef Count Type __attribute__((vector_size(kLanes * sizeof(Count))));
};

template <typename V, typename T>
LETHEON_INLINE void load(const T* place, V& vector) noexcept {
  std::memcpy(&vector, place, sizeof(V));
}

template <typename V, typename T>
LETHEON_INLINE void store(T* place, const V& vector) noexcept {
  std::memcpy(place, &vector, sizeof(V));
}

// What happened to a list of candidates.
struct Change {
  bool listed;  // the row's value is on the list
  bool died;    // no remaining row has that value
};

// A row of weight w leaves (w < 0: comes): count[j] -= w where x <= value[j], and copies[j] -= w
// where x == value[j]. For categories both count where x == value[j].
template <typename Count, bool kCategory>
struct Withdrawal {
  using Counts = typename CountVector<Count>::Type;

  float x;
  std::int32_t w;
  Counts listed{};
  Counts died{};

  // Eight candidates; returns their new counts.
  LETHEON_INLINE void apply(const float* value, Count* count, Count* copies,
                            Counts& counts) noexcept {
    Floats values;
    Counts copied;
    load(value, values);
    load(count, counts);
    load(copies, copied);
    const Counts same = __builtin_convertvector((x == values) & w, Counts);
    counts -= kCategory ? same : __builtin_convertvector((x <= values) & w, Counts);
    copied -= same;
    listed |= same;
    died |= same & (Counts)(copied == 0);
    store(count, counts);
    store(copies, copied);
  }

  [[nodiscard]] LETHEON_INLINE Change result() const noexcept {
    Count any_listed = 0;
    Count any_died = 0;
    for (std::size_t k = 0; k < kLanes; ++k) {
      any_listed = static_cast<Count>(any_listed | listed[k]);
      any_died = static_cast<Count>(any_died | died[k]);
    }
    return {any_listed != 0, any_died != 0};
  }
};

template <bool kCategory, typename Count>
LETHEON_INLINE Change withdraw_value(const float* value, std::size_t n, float x, std::int32_t w,
                                     Count* count, Count* copies) noexcept {
  Withdrawal<Count, kCategory> withdrawal{x, w};
  for (std::size_t j = 0; j < n; j += kLanes) {
    typename CountVector<Count>::Type counts;
    withdrawal.apply(value + j, count + j, copies + j, counts);
  }
  return withdrawal.result();
}

// The same for eight candidates that have an attribute of two values each: x == value[j] is left.
template <typename Count>
LETHEON_INLINE void withdraw_eight(const float* value, const std::uint32_t* attribute,
                                   const float* x, std::int32_t w, Count* count,
                                   typename CountVector<Count>::Type& counts) noexcept {
  float gathered[kLanes];
  for (std::size_t k = 0; k < kLanes; ++k) {
    gathered[k] = x[attribute[k]];
  }
  Floats values;
  Floats xs;
  load(value, values);
  load(gathered, xs);
  load(count, counts);
  counts -= __builtin_convertvector((xs == values) & w, typename CountVector<Count>::Type);
  store(count, counts);
}

// How many candidates come near a Gini score, and how many have an empty side, in single
// precision. Near means at least `bound`; with bound = score * (1 - kNear) every candidate whose
// exact score is not below the score is counted: eight roundings of at most 2^-24 each are less
// than kNear. Needs a total weight below 2^24. The two classes
// may be given in either order.
inline constexpr double kNear = 1e-6;

struct GiniRivals {
  float total0;
  float total1;
  float bound;
  Ints near{};
  Ints one_sided{};

  // The first n of eight candidates, by what lies left of them.
  template <typename Counts>
  LETHEON_INLINE void count(const Counts& left0, const Counts& left1, std::int32_t n) noexcept {
    const Floats a0 = __builtin_convertvector(__builtin_convertvector(left0, Ints), Floats);
    const Floats a1 = __builtin_convertvector(__builtin_convertvector(left1, Ints), Floats);
    const Floats b0 = total0 - a0;
    const Floats b1 = total1 - a1;
    const Floats n_left = a0 + a1;
    const Floats n_right = b0 + b1;
    const Floats sides = n_left * n_right;
    // score >= bound, multiplied by both sides: products are much cheaper than quotients.
    const Floats score = (a0 * a0 + a1 * a1) * n_right + (b0 * b0 + b1 * b1) * n_left;
    const Ints inside = Ints{0, 1, 2, 3, 4, 5, 6, 7} < n;
    const Ints empty = sides == 0.0f;
    near -= (score >= bound * sides) & ~empty & inside;
    one_sided -= empty & inside;
  }

  LETHEON_INLINE static std::int32_t sum(const Ints& lanes) noexcept {
    std::int32_t total = 0;
    for (std::size_t k = 0; k < kLanes; ++k) {
      total += lanes[k];
    }
    return total;
  }
};

// The best Gini score of two classes, (l0^2 + l1^2) / nL + (r0^2 + r1^2) / nR, among n candidates,
// and how many of them have an empty side. All scores go to `score` (room for the padding). Exact
// sums need a total weight below 2^26.
struct BestGini {
  double score;
  std::size_t n_one_sided;
};

template <typename Count>
LETHEON_INLINE BestGini best_gini(const Count* l0, const Count* l1, std::size_t n,
                                                 double total0, double total1,
                                                 double* score) noexcept {
  constexpr std::size_t kWidth = 4;
  typedef double Doubles __attribute__((vector_size(kWidth * sizeof(double))));
  typedef std::int64_t Longs __attribute__((vector_size(kWidth * sizeof(std::int64_t))));
  typedef std::int32_t Halves __attribute__((vector_size(kWidth * sizeof(std::int32_t))));
  typedef Count Counts __attribute__((vector_size(kWidth * sizeof(Count))));
  Doubles best = Doubles{} - 1.0;
  Longs one_sided{};
  for (std::size_t j = 0; j < n; j += kWidth) {
    Counts left0;
    Counts left1;
    load(l0 + j, left0);
    load(l1 + j, left1);
    const Doubles a0 = __builtin_convertvector(__builtin_convertvector(left0, Halves), Doubles);
    const Doubles a1 = __builtin_convertvector(__builtin_convertvector(left1, Halves), Doubles);
    const Doubles b0 = total0 - a0;
    const Doubles b1 = total1 - a1;
    const Doubles value = (a0 * a0 + a1 * a1) / (a0 + a1) + (b0 * b0 + b1 * b1) / (b0 + b1);
    store(score + j, value);
    const auto rest = static_cast<std::int64_t>(n - j);
    const Longs inside = Longs{0, 1, 2, 3} < rest;
    one_sided -= (value != value) & inside;  // 0 / 0
    best = ((value > best) & inside) ? value : best;
  }
  BestGini found{best[0], static_cast<std::size_t>(one_sided[0])};
  for (std::size_t k = 1; k < kWidth; ++k) {
    found.score = best[k] > found.score ? best[k] : found.score;
    found.n_one_sided += static_cast<std::size_t>(one_sided[k]);
  }
  return found;
}

}  // namespace letheon::forest
