#include "letheon/forest/kernels.hpp"

#include <algorithm>
#include <bit>
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

template <typename Count>
[[gnu::always_inline]] inline bool withdraw_loop(const float* __restrict value, std::size_t n,
                                                 float x, std::int32_t w, Count* __restrict count,
                                                 Count* __restrict copies) noexcept {
  std::uint32_t any = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const std::int32_t below = x <= value[j] ? w : 0;
    const std::int32_t same = x == value[j] ? w : 0;
    count[j] = static_cast<Count>(count[j] - static_cast<std::uint32_t>(below));
    copies[j] = static_cast<Count>(copies[j] - static_cast<std::uint32_t>(same));
    any |= static_cast<std::uint32_t>(same);
  }
  return any != 0;
}

template <typename Count>
[[gnu::always_inline]] inline void gini_loop(const Count* l0, const Count* l1, std::size_t n,
                                             double total0, double total1,
                                             double* __restrict score,
                                             double* __restrict left) noexcept {
  for (std::size_t j = 0; j < n; ++j) {
    const double a0 = static_cast<std::int32_t>(l0[j]);
    const double a1 = static_cast<std::int32_t>(l1[j]);
    const double b0 = total0 - a0;
    const double b1 = total1 - a1;
    left[j] = a0 + a1;
    score[j] = (a0 * a0 + a1 * a1) / (a0 + a1) + (b0 * b0 + b1 * b1) / (b0 + b1);
  }
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
void gini_scores(const std::uint16_t* l0, const std::uint16_t* l1, std::size_t n, double total0,
                 double total1, double* score, double* left) noexcept {
  gini_loop(l0, l1, n, total0, total1, score, left);
}

LETHEON_VECTOR
void gini_scores(const std::uint32_t* l0, const std::uint32_t* l1, std::size_t n, double total0,
                 double total1, double* score, double* left) noexcept {
  gini_loop(l0, l1, n, total0, total1, score, left);
}

}  // namespace letheon::forest
