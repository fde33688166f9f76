/* The flight recorder writes to the folder of TBCCL_DUMP when the process gets SIGUSR2, even while a call
 * waits, and when a communicator fails. tbcclCommDump writes to the given file.
 *
 * dump FOLDER: FOLDER is also the value of TBCCL_DUMP. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static tbcclComm_t comms[2];

/* Returns the contents of a rank's file, or an empty text without a file. */
static const char* written(const char* folder, int rank) {
  static char path[4096], text[1 << 16];
  snprintf(path, sizeof path, "%s/tbccl-rank%d-pid%ld.jsonl", folder, rank, (long)getpid());
  FILE* file = fopen(path, "r");
  size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
  text[length] = 0;
  if (file) fclose(file);
  return text;
}

/* Waits at most ten seconds until one line of a rank's file contains both texts. */
static void await_line(const char* folder, int rank, const char* one, const char* other) {
  struct timespec pause = {0, 5 * 1000 * 1000};
  for (int round = 0; round < 2000; ++round) {
    for (const char* line = written(folder, rank); line && *line; line = strchr(line, '\n')) {
      line += *line == '\n';
      const char *end = strchr(line, '\n'), *first = strstr(line, one), *second = strstr(line, other);
      if (end && first && second && first < end && second < end) return;
    }
    nanosleep(&pause, NULL);
  }
  FAIL("rank %d never wrote %s and %s but:\n%s", rank, one, other, written(folder, rank));
}

static void* rank_0(void* unused) {
  float data[8] = {0};
  CHECK(tbcclAllReduce(data, data, 8, tbcclFloat, tbcclSum, comms[0], NULL));
  return unused;
}

static void* rank_1_aborted(void* unused) {
  double data[3] = {0};
  REFUSED(tbcclAborted, tbcclAllReduce(data, data, 3, tbcclDouble, tbcclMax, comms[1], NULL));
  return unused;
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  const char* folder = argv[1];
  pthread_t thread;
  float data[8] = {0};
  CHECK(tbcclCommInitAll(comms, 2, NULL));

  /* Rank 0 waits for rank 1. */
  EXPECT(pthread_create(&thread, NULL, rank_0, NULL) == 0);
  tbcclStats_t stats = TBCCL_STATS_INITIALIZER;
  for (stats.begun = 0; stats.begun == 0;) CHECK(tbcclCommStats(comms[0], &stats));
  EXPECT(kill(getpid(), SIGUSR2) == 0);
  await_line(folder, 0, "all_reduce of 8 f32, op sum", "under way");
  CHECK(tbcclAllReduce(data, data, 8, tbcclFloat, tbcclSum, comms[1], NULL));
  EXPECT(pthread_join(thread, NULL) == 0);

  /* Rank 1 waits for rank 0, until it is aborted. */
  EXPECT(pthread_create(&thread, NULL, rank_1_aborted, NULL) == 0);
  for (stats.begun = 0; stats.begun < 2;) CHECK(tbcclCommStats(comms[1], &stats));
  CHECK(tbcclCommAbort(comms[1]));
  EXPECT(pthread_join(thread, NULL) == 0);
  await_line(folder, 1, "all_reduce of 3 f64, op max", "failed");
  await_line(folder, 1, "\"error\":", "abort");

  /* tbcclCommDump writes to the given file, without a signal or a failed call. */
  char own[4096];
  snprintf(own, sizeof own, "%s/own", folder);
  CHECK(tbcclCommDump(comms[0], own));
  EXPECT(access(own, R_OK) == 0);
  for (int rank = 0; rank < 2; ++rank) CHECK(tbcclCommDestroy(comms[rank]));
  puts("ok");
  return 0;
}
