// The saved inputs of the fuzzer of boosted trees.
#include "corpus.hpp"
#include "fuzz_index.hpp"

int main() { return letheon::testing::replay_corpus(letheon::fuzz::try_index); }
