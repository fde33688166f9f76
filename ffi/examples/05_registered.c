/* Calls without copies: on memory of the communicator, and on registered memory of the program. Counters show
 * the copied bytes.
 *
 *   tbccl run -n 2 -- ./05_registered */
#include <stdio.h>
#include <stdlib.h>
#include <tbccl.h>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    tbcclResult_t called = (call);                                                                 \
    if (called != tbcclSuccess) {                                                                  \
      fprintf(stderr, "%s: %s\n", tbcclGetErrorString(called), tbcclGetLastError(NULL));           \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { COUNT = 1 << 20 };

static uint64_t copied(tbcclComm_t comm) {
  tbcclStats_t stats = TBCCL_STATS_INITIALIZER;
  CHECK(tbcclCommStats(comm, &stats));
  return stats.copiedBytes;
}

/* Sums an array of ones over all ranks, and returns the number of bytes that were copied. */
static uint64_t sum(float* data, int size, tbcclComm_t comm) {
  uint64_t before = copied(comm);
  for (int i = 0; i < COUNT; ++i) data[i] = 1;
  CHECK(tbcclAllReduce(data, data, COUNT, tbcclFloat, tbcclSum, comm, NULL));
  if (data[0] != (float)size || data[COUNT - 1] != (float)size) exit(1);
  return copied(comm) - before;
}

int main(void) {
  tbcclComm_t comm;
  int rank, size;
  void *theirs = NULL, *pages = NULL, *registration = NULL;
  CHECK(tbcclCommInitFromEnv(&comm, NULL));
  CHECK(tbcclCommUserRank(comm, &rank));
  CHECK(tbcclCommCount(comm, &size));

  CHECK(tbcclCommMemAlloc(comm, &theirs, COUNT * sizeof(float)));
  CHECK(tbcclMemAlloc(&pages, COUNT * sizeof(float)));
  uint64_t of_comm = sum((float*)theirs, size, comm);
  uint64_t of_pages = sum((float*)pages, size, comm);
  CHECK(tbcclCommRegister(comm, pages, COUNT * sizeof(float), &registration));
  uint64_t of_registered = sum((float*)pages, size, comm);
  if (rank == 0) {
    printf("bytes copied: %llu of the communicator's memory, %llu of other memory, "
           "%llu once it is registered\n",
           (unsigned long long)of_comm, (unsigned long long)of_pages, (unsigned long long)of_registered);
  }
  CHECK(tbcclCommDeregister(comm, registration));
  CHECK(tbcclMemFree(pages));
  CHECK(tbcclMemFree(theirs));
  CHECK(tbcclCommDestroy(comm));
  return 0;
}
