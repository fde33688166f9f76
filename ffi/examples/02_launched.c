/* Each process of a launcher is a rank. The environment tells the process which one.
 *
 *   tbccl run -n 4 -- ./02_launched */
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

int main(void) {
  tbcclComm_t comm;
  int rank, size;
  CHECK(tbcclCommInitFromEnv(&comm, NULL));
  CHECK(tbcclCommUserRank(comm, &rank));
  CHECK(tbcclCommCount(comm, &size));

  /* Rank 0 broadcasts the job, each rank does its part, and rank 0 gathers the parts. */
  int64_t job = rank == 0 ? 7 : 0;
  CHECK(tbcclBcast(&job, 1, tbcclInt64, 0, comm, NULL));
  int64_t part = job * (rank + 1);
  int64_t* parts = (int64_t*)calloc((size_t)size, sizeof *parts);
  if (parts == NULL) return 1;
  CHECK(tbcclGather(&part, parts, 1, tbcclInt64, 0, comm, NULL));
  for (int r = 0; rank == 0 && r < size; ++r) {
    if (parts[r] != 7 * (r + 1)) return 1;
  }
  if (rank == 0) printf("%d ranks have done their parts; the last is %d\n", size, (int)parts[size - 1]);
  free(parts);
  CHECK(tbcclCommDestroy(comm));
  return 0;
}
