// Checks of C++ test programs. A check that fails prints the line, and ends the program with status 1.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

// Rank of this process, and number of ranks.
static int rank = 0, size = 1;

#define EXPECT(what)                                                              \
    do {                                                                          \
        if (!(what)) {                                                            \
            std::fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #what); \
            std::exit(1);                                                         \
        }                                                                         \
    } while (0)

// Checks that the call throws an exception whose message contains the words, and the prefix of its kind.
template <typename Call>
static void check_refused(int line, Call call, const char *words, const char *prefix) {
    try {
        call();
    } catch (const std::runtime_error &error) {
        if (std::strstr(error.what(), words) && std::strstr(error.what(), prefix)) return;
        std::fprintf(stderr, "line %d: expected `%s`: %s\n", line, words, error.what());
        std::exit(1);
    }
    std::fprintf(stderr, "line %d: nothing was thrown\n", line);
    std::exit(1);
}
