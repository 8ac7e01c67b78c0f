// From rows to leaves, and from leaves to predictions. Reads X where it lies.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "letheon/common/table.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

// Nodes that must be built before the question can be answered: (tree, node).
using Missing = std::vector<std::pair<std::uint32_t, NodeId>>;

// Throws std::invalid_argument on infinities or values too large for float32.
void require_finite(const MatrixView& X, std::size_t begin, std::size_t end);

// leaves[i - begin] = the childless node that row i of X reaches.
void find_leaves(const Tree& tree, const Spec& spec, const MatrixView& X, std::size_t begin,
                 std::size_t end, NodeId* leaves) noexcept;

// Adds what each leaf says: class probabilities, or the mean of the target in units of 2^scale.
void add_leaves(const Tree& tree, std::span<const NodeId> leaves, int scale,
                double* out) noexcept;

}  // namespace letheon::forest
