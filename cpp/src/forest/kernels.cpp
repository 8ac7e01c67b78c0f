#include "letheon/forest/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "letheon/keyed_hash.hpp"

// The sanitizers' run time is not ready when the loader picks an implementation.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && defined(__gnu_linux__)
#define LETHEON_VECTOR __attribute__((target_clones("avx2", "default")))
#else
#define LETHEON_VECTOR
#endif

namespace letheon::forest {

namespace {

// Vectors of fixed width: the loops are short, and what a compiler makes of a plain loop over
// 16-bit counts only pays for long ones.
template <typename V, typename T>
[[gnu::always_inline]] inline void load(const T* place, V& vector) noexcept {
  std::memcpy(&vector, place, sizeof(V));
}

template <typename V, typename T>
[[gnu::always_inline]] inline void store(T* place, const V& vector) noexcept {
  std::memcpy(place, &vector, sizeof(V));
}

template <typename Count>
[[gnu::always_inline]] inline bool withdraw_loop(const float* value, std::size_t n, float x,
                                                 std::int32_t w, Count* count,
                                                 Count* copies) noexcept {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
  typedef Count Counts __attribute__((vector_size(kLanes * sizeof(Count))));
  Ints any{};
  for (std::size_t j = 0; j < n; j += kLanes) {
    Floats values;
    Counts counts;
    Counts copied;
    load(value + j, values);
    load(count + j, counts);
    load(copies + j, copied);
    const Ints below = (x <= values) & w;
    const Ints same = (x == values) & w;
    any |= same;
    store(count + j, counts - __builtin_convertvector(below, Counts));
    store(copies + j, copied - __builtin_convertvector(same, Counts));
  }
  std::int32_t found = 0;
  for (std::size_t k = 0; k < kLanes; ++k) {
    found |= any[k];
  }
  return found != 0;
}

template <typename Count>
[[gnu::always_inline]] inline BestGini gini_loop(const Count* l0, const Count* l1, std::size_t n,
                                                 double total0, double total1,
                                                 double* score) noexcept {
  constexpr std::size_t kWidth = 4;
  typedef double Doubles __attribute__((vector_size(kWidth * sizeof(double))));
  typedef std::int64_t Longs __attribute__((vector_size(kWidth * sizeof(std::int64_t))));
  typedef std::int32_t Ints __attribute__((vector_size(kWidth * sizeof(std::int32_t))));
  typedef Count Counts __attribute__((vector_size(kWidth * sizeof(Count))));
  Doubles best = Doubles{} - 1.0;
  Longs one_sided{};
  for (std::size_t j = 0; j < n; j += kWidth) {
    Counts left0;
    Counts left1;
    load(l0 + j, left0);
    load(l1 + j, left1);
    const Doubles a0 = __builtin_convertvector(__builtin_convertvector(left0, Ints), Doubles);
    const Doubles a1 = __builtin_convertvector(__builtin_convertvector(left1, Ints), Doubles);
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

}  // namespace

LETHEON_VECTOR
void priorities(std::uint64_t key, const float* values, std::size_t n,
                std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = mix32(key, std::bit_cast<std::uint32_t>(values[i]));
  }
}

LETHEON_VECTOR
std::size_t place_of(const std::uint32_t* numbers, std::size_t n, std::uint32_t wanted) noexcept {
  constexpr std::size_t kBlock = 128;
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::uint32_t hits = 0;
    for (std::size_t b = 0; b < kBlock; ++b) {
      hits |= numbers[i + b] == wanted ? 1u : 0u;
    }
    if (hits != 0) {
      break;
    }
  }
  while (i < n && numbers[i] != wanted) {
    ++i;
  }
  return i;
}

LETHEON_VECTOR
Range range_of(const float* values, std::size_t n) noexcept {
  float least = std::numeric_limits<float>::infinity();
  float greatest = -least;
  std::uint32_t missing = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float x = values[i];
    least = x < least ? x : least;
    greatest = x > greatest ? x : greatest;
    missing |= x != x ? 1u : 0u;
  }
  return {least, greatest, missing != 0};
}

namespace {

// Few edges: one pass over the values per edge, in blocks that stay in the first cache.
LETHEON_VECTOR
void count_edges_below(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
                       std::uint32_t* out) noexcept {
  constexpr std::size_t kBlock = 16;
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::uint32_t below[kBlock] = {};
    for (std::size_t j = 0; j < n_edges; ++j) {
      for (std::size_t b = 0; b < kBlock; ++b) {
        below[b] += edges[j] < x[i + b] ? 1u : 0u;
      }
    }
    for (std::size_t b = 0; b < kBlock; ++b) {
      out[i + b] = below[b];
    }
  }
  for (; i < n; ++i) {
    std::uint32_t below = 0;
    for (std::size_t j = 0; j < n_edges; ++j) {
      below += edges[j] < x[i] ? 1u : 0u;
    }
    out[i] = below;
  }
}

}  // namespace

void cells(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
           std::uint32_t* out) noexcept {
  constexpr std::size_t kFew = 64;
  if (n_edges <= kFew) {
    count_edges_below(x, n, edges, n_edges, out);
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      out[i] = static_cast<std::uint32_t>(std::lower_bound(edges, edges + n_edges, x[i]) - edges);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = 2 * out[i] + (edges[out[i]] == x[i] ? 0u : 1u);
  }
}

LETHEON_VECTOR
bool withdraw(const float* value, std::size_t n, float x, std::int32_t w, std::uint16_t* count,
              std::uint16_t* copies) noexcept {
  return withdraw_loop(value, n, x, w, count, copies);
}

LETHEON_VECTOR
bool withdraw(const float* value, std::size_t n, float x, std::int32_t w, std::uint32_t* count,
              std::uint32_t* copies) noexcept {
  return withdraw_loop(value, n, x, w, count, copies);
}

LETHEON_VECTOR
BestGini best_gini(const std::uint16_t* l0, const std::uint16_t* l1, std::size_t n, double total0,
                   double total1, double* score) noexcept {
  return gini_loop(l0, l1, n, total0, total1, score);
}

LETHEON_VECTOR
BestGini best_gini(const std::uint32_t* l0, const std::uint32_t* l1, std::size_t n, double total0,
                   double total1, double* score) noexcept {
  return gini_loop(l0, l1, n, total0, total1, score);
}

}  // namespace letheon::forest
