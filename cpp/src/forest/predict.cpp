#include "letheon/forest/predict.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

namespace letheon::forest {

namespace {

template <typename T>
struct Reader {
  const std::byte* data;
  std::ptrdiff_t row_stride;
  std::ptrdiff_t column_stride;

  explicit Reader(const MatrixView& X) noexcept
      : data(X.data), row_stride(X.row_stride), column_stride(X.column_stride) {}

  [[nodiscard]] const std::byte* row(std::size_t i) const noexcept {
    return data + static_cast<std::ptrdiff_t>(i) * row_stride;
  }
  [[nodiscard]] float at(const std::byte* row, std::uint32_t column) const noexcept {
    return static_cast<float>(*reinterpret_cast<const T*>(
        row + static_cast<std::ptrdiff_t>(column) * column_stride));
  }
};

// Several rows at a time: while one waits for memory, the others continue.
template <std::size_t kTogether, bool kCategories, typename T>
void descend(const Tree& tree, const Reader<T>& reader, std::size_t first,
             NodeId* leaves) noexcept {
  const Node* nodes = tree.nodes();
  std::array<NodeId, kTogether> at{};
  std::array<const std::byte*, kTogether> rows;
  for (std::size_t g = 0; g < kTogether; ++g) {
    rows[g] = reader.row(first + g);
  }
  bool going = true;
  while (going) {
    going = false;
    for (std::size_t g = 0; g < kTogether; ++g) {
      const Node& node = nodes[at[g]];
      const float x = reader.at(rows[g], node.attribute);
      bool right = !(x <= node.threshold);
      if constexpr (kCategories) {
        right = right || (node.is_category && x != node.threshold);
      }
      if (x != x && node.is_split()) {
        right = !tree.sends_missing_left(node);
      }
      const NodeId next = node.left + (right ? 1u : 0u);
      going = going || node.is_split();
      at[g] = node.is_split() ? next : at[g];
    }
  }
  std::ranges::copy(at, leaves);
}

template <bool kCategories, typename T>
void find(const Tree& tree, const MatrixView& X, std::size_t begin, std::size_t end,
          NodeId* leaves) noexcept {
  constexpr std::size_t kTogether = 8;
  const Reader<T> reader(X);
  std::size_t i = begin;
  for (; i + kTogether <= end; i += kTogether) {
    descend<kTogether, kCategories>(tree, reader, i, leaves + (i - begin));
  }
  for (; i < end; ++i) {
    descend<1, kCategories>(tree, reader, i, leaves + (i - begin));
  }
}

}  // namespace

void require_finite(const MatrixView& X, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t j = 0; j < X.n_columns; ++j) {
      if (std::isinf(X.at(i, j))) {
        throw std::invalid_argument("X holds infinity or a value too large for float32 in row " +
                                    std::to_string(i) + ", column " + std::to_string(j));
      }
    }
  }
}

void find_leaves(const Tree& tree, const Spec& spec, const MatrixView& X, std::size_t begin,
                 std::size_t end, NodeId* leaves) noexcept {
  if (spec.categorical.empty()) {
    X.is_double ? find<false, double>(tree, X, begin, end, leaves)
                : find<false, float>(tree, X, begin, end, leaves);
  } else {
    X.is_double ? find<true, double>(tree, X, begin, end, leaves)
                : find<true, float>(tree, X, begin, end, leaves);
  }
}

void add_leaves(const Tree& tree, std::span<const NodeId> leaves, int scale,
                double* out) noexcept {
  const bool regression = tree.is_regression();
  const std::size_t width = regression ? 1 : tree.n_lanes();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Lanes lanes = tree.totals(leaves[i]);
    if (regression) {
      out[i] += std::ldexp(static_cast<double>(lanes[1]) / static_cast<double>(lanes[0]), scale);
      continue;
    }
    const auto weight = static_cast<double>(class_weight(lanes));
    for (std::size_t c = 0; c < width; ++c) {
      out[i * width + c] += static_cast<double>(lanes[c]) / weight;
    }
  }
}

}  // namespace letheon::forest
