/* A handler gets the events of two ranks, and warnings no longer go to stderr. */

#include "check.h"
#include "tbccl.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
  pthread_mutex_t lock;
  int events, starts, choices, failures, wrong;
} seen = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0, 0};

static void handle(void *user, int level, int rank, const char *target, const char *message) {
  pthread_mutex_lock(&seen.lock);
  seen.events++;
  seen.wrong += user != &seen || level < TBCCL_LOG_ERROR || level > TBCCL_LOG_INFO;
  seen.wrong += rank < 0 || rank > 1 || strncmp(target, "tbccl::", 7) != 0;
  seen.starts += !strcmp(target, "tbccl::init") && strstr(message, "of 2 on ") != NULL;
  seen.choices += !strcmp(target, "tbccl::selection") && strstr(message, "all_reduce of 8 B") != NULL;
  seen.failures += level == TBCCL_LOG_ERROR && !strcmp(target, "tbccl::failure");
  pthread_mutex_unlock(&seen.lock);
}

static void *reduce(void *comm) {
  double sum = 1;
  CHECK(tbcclAllReduce(&sum, &sum, 1, tbcclFloat64, tbcclSum, (tbcclComm_t)comm, NULL));
  return NULL;
}

static void run(void) {
  tbcclComm_t comms[2];
  pthread_t threads[2];
  CHECK(tbcclCommInitAll(comms, 2, NULL));
  for (int rank = 0; rank < 2; rank++) pthread_create(&threads[rank], NULL, reduce, comms[rank]);
  for (int rank = 0; rank < 2; rank++) pthread_join(threads[rank], NULL);
  for (int rank = 0; rank < 2; rank++) CHECK(tbcclCommDestroy(comms[rank]));
}

int main(void) {
  EXPECT(tbcclSetLogHandler(handle, &seen, 6) == tbcclInvalidArgument);
  CHECK(tbcclSetLogHandler(handle, &seen, TBCCL_LOG_INFO));
  run();
  EXPECT(seen.starts == 2);
  EXPECT(seen.choices >= 1);
  EXPECT(seen.failures == 0);
  EXPECT(seen.wrong == 0);
  CHECK(tbcclSetLogHandler(NULL, NULL, 0));
  int before = seen.events;
  run();
  EXPECT(seen.events == before);
  puts("ok");
  return 0;
}
