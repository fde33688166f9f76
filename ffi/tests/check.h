/* Macros of the C tests. A failed check prints a message and ends the process with status 1. */
#ifndef CHECK_H_
#define CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tbccl.h"

#define FAIL(...)                                                                                  \
  do {                                                                                             \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                \
    fprintf(stderr, __VA_ARGS__);                                                                  \
    fputc('\n', stderr);                                                                           \
    exit(1);                                                                                       \
  } while (0)

/* Checks that the condition is true. */
#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) FAIL("false: %s", #condition);                                              \
  } while (0)

/* Checks that the call succeeds. */
#define CHECK(call)                                                                                \
  do {                                                                                             \
    tbcclResult_t result_ = (call);                                                                \
    if (result_ != tbcclSuccess)                                                                   \
      FAIL("%s: %s: %s", #call, tbcclGetErrorString(result_), tbcclGetLastError(NULL));            \
  } while (0)

/* Checks that the call returns this code and leaves an error message. */
#define REFUSED(code, call)                                                                        \
  do {                                                                                             \
    tbcclResult_t result_ = (call);                                                                \
    if (result_ != (code)) FAIL("%s: %d (%s)", #call, (int)result_, tbcclGetLastError(NULL));      \
    if (tbcclGetLastError(NULL)[0] == 0) FAIL("%s: no error message", #call);                    \
  } while (0)

#endif
