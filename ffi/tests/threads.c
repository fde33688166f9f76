/* Two threads call one communicator, in any order and with right results. Two threads call two
 * communicators. One thread destroys a communicator while others call it. */
#include <pthread.h>

#include "check.h"

enum { ROUNDS = 300, COUNT = 64 };

static tbcclComm_t shared[2], own[2];

/* All calls have equal arguments, so that they match whatever their order on the two ranks. */
static void* call_on_shared(void* argument) {
  tbcclComm_t comm = *(tbcclComm_t*)argument;
  for (int round = 0; round < ROUNDS; ++round) {
    float data[COUNT];
    for (int i = 0; i < COUNT; ++i) data[i] = 1;
    CHECK(tbcclAllReduce(data, data, COUNT, tbcclFloat, tbcclSum, comm, NULL));
    for (int i = 0; i < COUNT; ++i) EXPECT(data[i] == 2);
  }
  return NULL;
}

static void* call_until_closed(void* argument) {
  tbcclComm_t comm = *(tbcclComm_t*)argument;
  for (;;) {
    tbcclResult_t result = tbcclBarrier(comm, NULL);
    if (result == tbcclSuccess) continue;
    if (result != tbcclInvalidArgument && result != tbcclInvalidUsage)
      FAIL("%d: %s", (int)result, tbcclGetLastError(NULL));
    return NULL;
  }
}

int main(void) {
  pthread_t threads[6];
  CHECK(tbcclCommInitAll(shared, 2, NULL));
  CHECK(tbcclCommInitAll(own, 2, NULL));
  for (int t = 0; t < 4; ++t) EXPECT(pthread_create(&threads[t], NULL, call_on_shared, &shared[t % 2]) == 0);
  for (int t = 0; t < 2; ++t) EXPECT(pthread_create(&threads[4 + t], NULL, call_on_shared, &own[t]) == 0);
  for (int t = 0; t < 6; ++t) EXPECT(pthread_join(threads[t], NULL) == 0);
  for (int t = 0; t < 2; ++t) CHECK(tbcclCommDestroy(own[t]));
  for (int t = 0; t < 2; ++t) CHECK(tbcclCommDestroy(shared[t]));

  for (int round = 0; round < 50; ++round) {
    tbcclComm_t alone;
    CHECK(tbcclCommInitAll(&alone, 1, NULL));
    for (int t = 0; t < 2; ++t) EXPECT(pthread_create(&threads[t], NULL, call_until_closed, &alone) == 0);
    tbcclComm_t closed = alone;
    CHECK(tbcclCommDestroy(closed));
    for (int t = 0; t < 2; ++t) EXPECT(pthread_join(threads[t], NULL) == 0);
  }
  puts("ok");
  return 0;
}
