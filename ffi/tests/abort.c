/* One rank aborts while all ranks are in an all-reduce of 64 MiB. The abort returns promptly, the call of
 * every rank returns an error soon, and the other ranks continue on a shrunk communicator. All of it is
 * repeated.
 *
 * abort [REPETITIONS [MEBIBYTES]] */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "check.h"

enum { RANKS = 3 };

static tbcclComm_t comms[RANKS];
static float* data[RANKS];
static size_t count;
static pthread_barrier_t start;

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

struct ended {
  int rank;
  tbcclResult_t result;
  double at;
};

static void* play(void* argument) {
  struct ended* ended = (struct ended*)argument;
  int rank = ended->rank;
  pthread_barrier_wait(&start);
  /* Repeats the call until it fails. */
  do ended->result = tbcclAllReduce(data[rank], data[rank], count, tbcclFloat, tbcclSum, comms[rank], NULL);
  while (ended->result == tbcclSuccess);
  ended->at = now();
  if (tbcclGetLastError(comms[rank])[0] == 0) FAIL("rank %d: no error message", rank);
  return NULL;
}

/* Makes a communicator without rank 1, which has aborted. */
static void* shrink(void* argument) {
  int rank = *(int*)argument, ranks = 0, out[1] = {1};
  tbcclComm_t left;
  CHECK(tbcclCommShrink(comms[rank], out, 1, &left, NULL, TBCCL_SHRINK_ABORT));
  CHECK(tbcclCommCount(left, &ranks));
  EXPECT(ranks == RANKS - 1);
  float x = (float)(rank + 1), sum = 0;
  CHECK(tbcclAllReduce(&x, &sum, 1, tbcclFloat, tbcclSum, left, NULL));
  EXPECT(sum == 4);
  CHECK(tbcclCommDestroy(left));
  return NULL;
}

static void repeat(double* longest_abort, double* longest_end) {
  pthread_t threads[RANKS];
  struct ended ended[RANKS];
  struct timespec pause = {0, 5 * 1000 * 1000};
  CHECK(tbcclCommInitAll(comms, RANKS, NULL));
  for (int r = 0; r < RANKS; ++r) {
    ended[r].rank = r;
    EXPECT(pthread_create(&threads[r], NULL, play, &ended[r]) == 0);
  }
  pthread_barrier_wait(&start);
  nanosleep(&pause, NULL);
  double begun = now();
  CHECK(tbcclCommAbort(comms[1]));
  double aborted = now() - begun;
  if (aborted > *longest_abort) *longest_abort = aborted;
  for (int r = 0; r < RANKS; ++r) {
    EXPECT(pthread_join(threads[r], NULL) == 0);
    EXPECT(ended[r].result != tbcclSuccess && ended[r].result != tbcclTimeout);
    if (ended[r].at - begun > *longest_end) *longest_end = ended[r].at - begun;
  }
  EXPECT(ended[1].result == tbcclAborted);
  REFUSED(tbcclAborted, tbcclBarrier(comms[1], NULL));
  int survivors[2] = {0, 2};
  for (int s = 0; s < 2; ++s) EXPECT(pthread_create(&threads[s], NULL, shrink, &survivors[s]) == 0);
  for (int s = 0; s < 2; ++s) EXPECT(pthread_join(threads[s], NULL) == 0);
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommDestroy(comms[r]));
}

int main(int argc, char** argv) {
  int repetitions = argc > 1 ? atoi(argv[1]) : 200;
  double longest_abort = 0, longest_end = 0;
  count = ((size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20) / sizeof(float);
  EXPECT(pthread_barrier_init(&start, NULL, RANKS + 1) == 0);
  for (int r = 0; r < RANKS; ++r) {
    data[r] = (float*)calloc(count, sizeof(float));
    EXPECT(data[r]);
  }
  for (int round = 0; round < repetitions; ++round) repeat(&longest_abort, &longest_end);
  printf("abort returned within %.1f ms, calls within %.1f ms\n", longest_abort * 1e3, longest_end * 1e3);
  EXPECT(longest_abort < 0.1 && longest_end < 2);
  for (int r = 0; r < RANKS; ++r) free(data[r]);
  pthread_barrier_destroy(&start);
  puts("ok");
  return 0;
}
