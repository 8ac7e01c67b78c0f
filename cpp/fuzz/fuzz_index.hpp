// One input of the fuzzer of vector indexes.
#pragma once

#include "letheon/common/keyed_hash.hpp"

namespace letheon::fuzz {

// Builds an index from the input and changes it as the input says. Returns whether the rows were
// taken; aborts if something that must hold does not.
bool try_index(Bytes input);

}  // namespace letheon::fuzz
