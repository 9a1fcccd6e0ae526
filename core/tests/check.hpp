// The whole test framework: CHECK says what failed and where, main() returns finish().
#pragma once

#include <cstdio>
#include <exception>

namespace slipstream::test {

inline int failures = 0;

inline void fail(const char* what, const char* file, int line) {
  ++failures;
  std::printf("%s:%d: CHECK failed: %s\n", file, line, what);
}

inline int finish() {
  std::printf(failures == 0 ? "ok\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace slipstream::test

#define CHECK(condition) ((condition) ? (void)0 : slipstream::test::fail(#condition, __FILE__, __LINE__))

#define CHECK_THROWS(expression, Exception)                                                     \
  do {                                                                                          \
    bool thrown = false;                                                                        \
    try {                                                                                       \
      (void)(expression);                                                                       \
    } catch (const Exception&) {                                                                \
      thrown = true;                                                                            \
    }                                                                                           \
    if (!thrown) slipstream::test::fail(#expression " throws " #Exception, __FILE__, __LINE__); \
  } while (false)
