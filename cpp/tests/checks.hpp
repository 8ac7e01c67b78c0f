// What every test program needs: count failures, say where, and return them from main.
#pragma once

#include <cstdio>
#include <source_location>
#include <stdexcept>
#include <string>

namespace letheon::testing {

inline int failures = 0;

inline void check(bool condition, const std::string& what,
                  std::source_location where = std::source_location::current()) {
  constexpr int kEnough = 20;
  if (!condition && ++failures <= kEnough) {
    std::fprintf(stderr, "FAILED: %s (%s:%u)\n", what.c_str(), where.file_name(),
                 static_cast<unsigned>(where.line()));
  }
}

// The call must throw std::invalid_argument.
template <typename Call>
void check_refused(Call call, const std::string& what,
                   std::source_location where = std::source_location::current()) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return;
  }
  check(false, what, where);
}

inline int result() { return failures == 0 ? 0 : 1; }

}  // namespace letheon::testing
