// The inner loops: plain loops over arrays that compilers turn into vector instructions.
//
// On x86-64 each is compiled twice, and the processor decides at run time. The results do not
// depend on that: integers are exact, and the doubles are single IEEE operations in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace letheon::forest {

// out[i] = mix32(key, bits of values[i]).
void priorities(std::uint64_t key, const float* values, std::size_t n, std::uint32_t* out) noexcept;

// Place of a number in an array that holds it once.
[[nodiscard]] std::size_t place_of(const std::uint32_t* numbers, std::size_t n,
                                   std::uint32_t wanted) noexcept;

struct Range {
  float least;
  float greatest;
  bool has_missing;
};

// NaN apart; least > greatest if there is nothing else.
[[nodiscard]] Range range_of(const float* values, std::size_t n) noexcept;

// out[i] = 2 * (number of `edges` below x[i]) + (1 if x[i] is not the next edge); edges ascend,
// and edges[n_edges] is NaN.
void cells(const float* x, std::size_t n, const float* edges, std::size_t n_edges,
           std::uint32_t* out) noexcept;

// Arrays of candidates are padded to a multiple of this many; the values of the padding are NaN.
inline constexpr std::size_t kLanes = 8;

[[nodiscard]] constexpr std::size_t padded(std::size_t n) noexcept {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// One row of weight w leaves (w < 0: comes): count[j] -= w where x <= value[j], and
// copies[j] -= w where x == value[j]. Returns whether there was such a j. The arrays are padded.
[[nodiscard]] bool withdraw(const float* value, std::size_t n, float x, std::int32_t w,
                            std::uint16_t* count, std::uint16_t* copies) noexcept;
[[nodiscard]] bool withdraw(const float* value, std::size_t n, float x, std::int32_t w,
                            std::uint32_t* count, std::uint32_t* copies) noexcept;

// The best Gini score of two classes, (l0^2 + l1^2) / nL + (r0^2 + r1^2) / nR, among n candidates,
// and how many of them have an empty side. All scores go to `score` (room for the padding). Exact
// sums need a total weight below 2^26. The arrays are padded.
struct BestGini {
  double score;
  std::size_t n_one_sided;
};
[[nodiscard]] BestGini best_gini(const std::uint16_t* l0, const std::uint16_t* l1, std::size_t n,
                                 double total0, double total1, double* score) noexcept;
[[nodiscard]] BestGini best_gini(const std::uint32_t* l0, const std::uint32_t* l1, std::size_t n,
                                 double total0, double total1, double* score) noexcept;

}  // namespace letheon::forest
