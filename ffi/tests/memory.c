/* Memory of the library, memory of a communicator, and registered memory. Calls on a communicator's memory
 * make no copies. Communicators leave no memory behind, whatever the order in which they end: this program
 * also runs under valgrind and AddressSanitizer. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"

enum { RANKS = 2, COUNT = 1 << 18 };

static tbcclComm_t comms[RANKS];

static void sum_in(int rank, float* data) {
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(i % 5 + rank);
  CHECK(tbcclAllReduce(data, data, COUNT, tbcclFloat, tbcclSum, comms[rank], NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(data[i] == (float)(2 * (i % 5) + 1));
}

/* tbcclCommDump appends the last calls of this rank to a file, as lines of JSON. */
static void last_calls(tbcclComm_t comm) {
  char path[] = "/tmp/tbccl_test_XXXXXX", line[4096];
  int found = 0, file = mkstemp(path);
  EXPECT(file >= 0);
  CHECK(tbcclCommDump(comm, path));
  CHECK(tbcclCommDump(comm, path));
  FILE* dump = fdopen(file, "r");
  EXPECT(dump);
  while (fgets(line, sizeof line, dump)) {
    EXPECT(line[0] == '{' && line[strlen(line) - 2] == '}');
    found += strstr(line, "all_reduce") != NULL;
  }
  fclose(dump);
  unlink(path);
  EXPECT(found >= 6);
}

static void* play(void* argument) {
  int rank = *(int*)argument;
  tbcclComm_t comm = comms[rank];
  void *own = NULL, *slab = NULL, *registration = NULL;
  CHECK(tbcclMemAlloc(&own, COUNT * sizeof(float)));
  CHECK(tbcclCommMemAlloc(comm, &slab, COUNT * sizeof(float)));
  EXPECT((uintptr_t)own % 4096 == 0);
  for (size_t i = 0; i < COUNT * sizeof(float); ++i) EXPECT(((char*)own)[i] == 0 && ((char*)slab)[i] == 0);
  tbcclStats_t before = TBCCL_STATS_INITIALIZER, after = TBCCL_STATS_INITIALIZER;
  CHECK(tbcclCommStats(comm, &before));
  sum_in(rank, (float*)slab);
  CHECK(tbcclCommStats(comm, &after));
  EXPECT(after.movedBytes > before.movedBytes);
  if (after.copiedBytes != before.copiedBytes)
    FAIL("%llu bytes were copied", (unsigned long long)(after.copiedBytes - before.copiedBytes));
  sum_in(rank, (float*)own);
  CHECK(tbcclCommRegister(comm, own, COUNT * sizeof(float), &registration));
  sum_in(rank, (float*)own);
  REFUSED(tbcclInvalidUsage, tbcclMemFree(own));
  CHECK(tbcclCommDeregister(comm, registration));
  CHECK(tbcclMemFree(own));
  if (rank == 0) last_calls(comm);
  CHECK(tbcclBarrier(comm, NULL));
  CHECK(tbcclCommDestroy(comm));
  /* The memory may be freed after its communicator. */
  ((char*)slab)[COUNT] = 1;
  CHECK(tbcclMemFree(slab));
  return NULL;
}

static void parameters(void) {
  const char* text = NULL;
  int len = -1;
  char before[32];
  CHECK(tbcclParamGet("TIMEOUT", &text, &len));
  EXPECT(text && (int)strlen(text) == len && len > 0 && len < (int)sizeof before);
  strcpy(before, text);
  CHECK(tbcclParamSet("TBCCL_TIMEOUT", "12.5"));
  CHECK(tbcclParamGet("timeout", &text, NULL));
  EXPECT(strcmp(text, "12.5") == 0);
  REFUSED(tbcclInvalidArgument, tbcclParamSet("TIMEOUT", "-1"));
  CHECK(tbcclParamGet("TBCCL_TIMEOUT", NULL, &len));
  EXPECT(len == 4);
  CHECK(tbcclParamSet("TIMEOUT", NULL));
  CHECK(tbcclParamGet("TIMEOUT", &text, NULL));
  EXPECT(strcmp(text, before) == 0);
  tbcclParamDumpAll();
}

int main(void) {
  pthread_t threads[RANKS];
  int ranks[RANKS] = {0, 1};
  parameters();
  CHECK(tbcclCommInitAll(comms, RANKS, NULL));
  for (int r = 0; r < RANKS; ++r) EXPECT(pthread_create(&threads[r], NULL, play, &ranks[r]) == 0);
  for (int r = 0; r < RANKS; ++r) EXPECT(pthread_join(threads[r], NULL) == 0);
  puts("ok");
  return 0;
}
