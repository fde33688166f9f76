/* What the C tests have in common: a test ends with a sentence and status 1 when something is not as it should be. */
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

/* It is so. */
#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) FAIL("not so: %s", #condition);                                              \
  } while (0)

/* The call succeeds. */
#define CHECK(call)                                                                                \
  do {                                                                                             \
    tbcclResult_t result_ = (call);                                                                \
    if (result_ != tbcclSuccess)                                                                   \
      FAIL("%s: %s: %s", #call, tbcclGetErrorString(result_), tbcclGetLastError(NULL));            \
  } while (0)

/* The call returns that code, and says why. */
#define REFUSED(code, call)                                                                        \
  do {                                                                                             \
    tbcclResult_t result_ = (call);                                                                \
    if (result_ != (code)) FAIL("%s: %d (%s)", #call, (int)result_, tbcclGetLastError(NULL));      \
    if (tbcclGetLastError(NULL)[0] == 0) FAIL("%s: no reason is given", #call);                    \
  } while (0)

#endif
