/* As abort.c, between processes of a launcher. Rank 1 aborts from a second thread while all ranks are in an
 * all-reduce. The call of every rank returns an error soon, and the other ranks continue without rank 1. All
 * of it is repeated, each time with a new communicator.
 *
 * abort_processes [REPETITIONS [MEBIBYTES]] */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "check.h"

enum { ABORTER = 1 };

static double longest_abort, longest_end;

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void note(double* longest, double took) {
  if (took > *longest) *longest = took;
}

struct abort_request {
  tbcclComm_t comm;
  double at;
};

static void* abort_soon(void* argument) {
  struct abort_request* request = (struct abort_request*)argument;
  struct timespec pause = {0, 5 * 1000 * 1000};
  nanosleep(&pause, NULL);
  request->at = now();
  CHECK(tbcclCommAbort(request->comm));
  note(&longest_abort, now() - request->at);
  return NULL;
}

/* Continues on a communicator without the rank that aborted. */
static void continue_without_aborter(tbcclComm_t failed, int rank, int ranks) {
  int out[1] = {ABORTER}, left_ranks = 0;
  tbcclComm_t left;
  CHECK(tbcclCommShrink(failed, out, 1, &left, NULL, TBCCL_SHRINK_ABORT));
  CHECK(tbcclCommCount(left, &left_ranks));
  EXPECT(left_ranks == ranks - 1);
  float x = (float)(rank + 1), sum = 0;
  CHECK(tbcclAllReduce(&x, &sum, 1, tbcclFloat, tbcclSum, left, NULL));
  EXPECT(sum == (float)(ranks * (ranks + 1) / 2 - (ABORTER + 1)));
  CHECK(tbcclCommDestroy(left));
}

static void repeat(tbcclComm_t base, float* data, size_t count, int rank, int ranks) {
  struct abort_request request = {NULL, 0};
  tbcclResult_t result;
  pthread_t thread;
  double last_began;
  CHECK(tbcclCommSplit(base, 0, rank, &request.comm, NULL));
  CHECK(tbcclAllReduce(data, data, count, tbcclFloat, tbcclSum, request.comm, NULL));
  /* From here on, no rank is in a call that has to succeed. */
  CHECK(tbcclBarrier(base, NULL));
  if (rank == ABORTER) EXPECT(pthread_create(&thread, NULL, abort_soon, &request) == 0);
  do {
    last_began = now();
    result = tbcclAllReduce(data, data, count, tbcclFloat, tbcclSum, request.comm, NULL);
  } while (result == tbcclSuccess);
  double ended = now();
  EXPECT(result != tbcclTimeout && tbcclGetLastError(request.comm)[0] != 0);
  if (rank == ABORTER) {
    EXPECT(result == tbcclAborted);
    EXPECT(pthread_join(thread, NULL) == 0);
    note(&longest_end, ended - request.at);
  } else {
    /* The call that failed began before the abort, or soon after it. */
    note(&longest_end, ended - last_began);
    continue_without_aborter(request.comm, rank, ranks);
  }
  CHECK(tbcclCommDestroy(request.comm));
  CHECK(tbcclBarrier(base, NULL));
}

int main(int argc, char** argv) {
  int repetitions = argc > 1 ? atoi(argv[1]) : 10, rank = 0, ranks = 0;
  size_t count = ((size_t)(argc > 2 ? atoi(argv[2]) : 4) << 20) / sizeof(float);
  tbcclComm_t base;
  CHECK(tbcclCommInitFromEnv(&base, NULL));
  CHECK(tbcclCommUserRank(base, &rank));
  CHECK(tbcclCommCount(base, &ranks));
  float* data = (float*)calloc(count, sizeof(float));
  EXPECT(data && ranks > 2);
  for (int round = 0; round < repetitions; ++round) repeat(base, data, count, rank, ranks);
  CHECK(tbcclCommDestroy(base));
  free(data);
  printf("abort returned within %.1f ms, calls within %.1f ms\n", longest_abort * 1e3, longest_end * 1e3);
  EXPECT(longest_abort < 0.1 && longest_end < 2);
  puts("ok");
  return 0;
}
