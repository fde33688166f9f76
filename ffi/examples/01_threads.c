/* Each thread of one process is a rank.
 *
 *   cc 01_threads.c $(pkg-config --cflags --libs tbccl) -lpthread -o 01_threads && ./01_threads */
#include <pthread.h>
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

enum { RANKS = 4, COUNT = 1024 };

static void* rank_main(void* argument) {
  tbcclComm_t comm = *(tbcclComm_t*)argument;
  int rank, size;
  CHECK(tbcclCommUserRank(comm, &rank));
  CHECK(tbcclCommCount(comm, &size));

  float gradients[COUNT];
  for (int i = 0; i < COUNT; ++i) gradients[i] = (float)rank;
  CHECK(tbcclAllReduce(gradients, gradients, COUNT, tbcclFloat, tbcclAvg, comm, NULL));
  if (gradients[0] != (float)(size - 1) / 2) {
    fprintf(stderr, "rank %d: the mean is %f\n", rank, (double)gradients[0]);
    exit(1);
  }
  if (rank == 0) printf("the mean over %d ranks is %g\n", size, (double)gradients[0]);
  CHECK(tbcclCommDestroy(comm));
  return NULL;
}

int main(void) {
  tbcclComm_t comms[RANKS];
  pthread_t threads[RANKS];
  CHECK(tbcclCommInitAll(comms, RANKS, NULL));
  for (int r = 0; r < RANKS; ++r) {
    if (pthread_create(&threads[r], NULL, rank_main, &comms[r]) != 0) return 1;
  }
  for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);
  return 0;
}
