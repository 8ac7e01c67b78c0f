// Marks for functions that are compiled once per kind of processor; the processor decides at run
// time. Results do not depend on that: integers are exact, and the floating-point operations are
// single IEEE operations in a fixed order.
#pragma once

// The sanitizers' run time is not ready when the loader picks an implementation.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__gnu_linux__)
#define LETHEON_VECTOR __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define LETHEON_VECTOR
#endif

#define LETHEON_INLINE [[gnu::always_inline]] inline
