// Replays the inputs that a fuzzer has found worth keeping, and simple mutations of them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checks.hpp"
#include "people.hpp"

namespace letheon::testing {

using Input = std::vector<std::uint8_t>;

inline std::vector<Input> saved_inputs() {
  std::vector<Input> inputs;
  const char* const folder = std::getenv("LETHEON_CORPUS");
  if (folder == nullptr) {
    return inputs;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// One of the things that happen to files.
inline Input mutated(Luck& luck, const Input& input, const Input& other) {
  Input changed = input;
  const std::size_t place = luck.below(changed.size());
  const auto at = changed.begin() + static_cast<std::ptrdiff_t>(place);
  switch (luck.below(5)) {
    case 0:
      changed[place] = static_cast<std::uint8_t>(luck.next());
      break;
    case 1:
      changed[place] = static_cast<std::uint8_t>(changed[place] ^ (1u << luck.below(8)));
      break;
    case 2:
      changed.resize(place);
      break;
    case 3:
      changed.insert(at, static_cast<std::uint8_t>(luck.next()));
      break;
    default:
      changed.resize(place);
      changed.insert(changed.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(std::min(place, other.size())),
                     other.end());
  }
  return changed;
}

// `try_input` returns whether an input was taken.
template <typename TryInput>
int replay_corpus(TryInput try_input) {
  const std::vector<Input> inputs = saved_inputs();
  check(inputs.size() >= 20, "the saved inputs are there (LETHEON_CORPUS names their folder)");
  std::size_t n_taken = 0;
  std::size_t n_refused = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Luck luck(i);
    ++(try_input(inputs[i]) ? n_taken : n_refused);
    for (int round = 0; round < 60 && !inputs[i].empty(); ++round) {
      const Input& other = inputs[luck.below(inputs.size())];
      ++(try_input(mutated(luck, inputs[i], other)) ? n_taken : n_refused);
    }
  }
  check(n_taken > 100 && n_refused > 100, "some are taken and some refused");
  return result();
}

}  // namespace letheon::testing
